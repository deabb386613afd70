"""``data features``: the features of a network as a data set."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from mlpip_bench import registry
from mlpip_bench.cli.common import DataRoot, err, out
from mlpip_bench.cli.elsewhere import Data, Source
from mlpip_bench.utils.choices import SourceChoice
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import ROOT_VARIABLE, check_folder_can_be_made, data_root_of, given_path
from mlpip_bench.utils.progress import ConsoleReporter

FEATURES_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench data features --bench mini5w1s --data-root ~/data --as mini-resnet "
    "--backbone resnet12,weights=resnet12.pt,trained_on=miniImageNet-train\n\n"
    "python -m mlpip_bench data features --bench omni5w1s --to features.npz --backbone conv4,trained_on=none"
)


def features(
    bench: Annotated[str, typer.Option(help="Of whose images; way and shot do not matter (see: list benches).")],
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME,trained_on=TEXT[,weights=FILE]",
            help="The network, as of run, and what it was trained on; none for initial parameters.",
        ),
    ],
    norm: Annotated[str, typer.Option(help="One under which features depend on no task: running, own, layer.")] = (
        "running"
    ),
    target: Annotated[
        Path | None, typer.Option("--to", parser=given_path, metavar="FILE", help="An npz file, as data add takes it.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="A data set of this name below the data root: NAME5w1s.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    source: Source = "auto",
    data_root: DataRoot = None,
    data: Data = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data set that was added as NAME before.")] = (
        False
    ),
) -> None:
    """Compute the features of all images of a bench by a frozen network, once: heads then train on them in minutes."""
    if (target is None) == (name is None):
        raise UserError(
            f"features go to a file or to a data set: pass --to FILE or --as NAME; got "
            f"{'neither' if target is None else 'both'}."
        )
    if target is not None and target.suffix.lower() != ".npz":
        raise UserError(f"data features writes an npz file; got --to {target}. Name a file that ends in .npz.")
    if name is not None and data_root is None:
        raise UserError(f"--as needs a folder for its data set; pass --data-root or set {ROOT_VARIABLE}.")
    if source not in get_args(SourceChoice):
        raise unknown_name("source", source, get_args(SourceChoice))
    from mlpip_bench.benches.added import first_run
    from mlpip_bench.benches.family import DataRequest
    from mlpip_bench.datasets import added
    from mlpip_bench.execution import feature_data, options
    from mlpip_bench.utils.device import resolve_device

    if name is not None:
        added.check_name(name)
        registry.check_new_family(name)
    if target is not None:
        check_folder_can_be_made(target.parent)  # before features are computed
    is_new = name is not None and data_root is not None and not data_root.exists()  # and is made, as by data add
    reporter, where, root = ConsoleReporter(err), resolve_device(device), None if is_new else data_root_of(data_root)
    request = DataRequest(cast("SourceChoice", source), root, reporter)
    images, family = feature_data.images_of(bench, root, request, options.data_options(data or []))
    used = feature_data.extractor(backbone, norm, images.image_shape, where)
    make = partial(feature_data.feature_data, name or images.name, images, used, where, reporter)
    if name is not None and data_root is not None:
        feature_data.write_data(name, make, family, data_root, replace=replace)
        place, command = data_root / name, first_run(registry.added_family(data_root / name), data_root)
    elif target is not None:
        feature_data.write_file(target, make())
        place, command = target, f"python -m mlpip_bench data add NAME --from {target} --data-root {data_root or 'DIR'}"
    for line in (f"{place} has the features of {used.title}; now for example", f"  {command}"):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
