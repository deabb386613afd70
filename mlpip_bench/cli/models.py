"""``export`` and ``predict``: trained models in use."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mlpip_bench.cli.common import DataRoot, TrustCode, err, folded_table, out
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

EXPORT_EXAMPLES = (
    "Example:\n\n"
    "python -m mlpip_bench export runs/records/omni5w1s/versa/accuracy-seed0-6a51905f67d3.json --to versa.safetensors"
)
PREDICT_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench predict --model omniglot-protonets --support letters --query scans\n\n"
    "python -m mlpip_bench predict --model versa.safetensors --support letters --query scans --to predictions.csv "
    "--sheet sheet.png"
)
_ROWS = 10


def export(
    record: Annotated[
        Path, typer.Argument(parser=given_path, metavar="RECORD", help="A record, whose checkpoint is in its folder.")
    ],
    to: Annotated[
        Path, typer.Option("--to", parser=given_path, metavar="FILE", help="A .safetensors file; its card is a .md.")
    ],
    data_root: DataRoot = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the trained model behind a record as safetensors, with a model card, for others to use."""
    from mlpip_bench.api.exporting import export as exported

    path = exported(record, to, data_root=data_root, trust_code=trust_code)
    typer.echo(path)
    typer.echo(path.with_suffix(".md"))


def predict(
    model: Annotated[
        str,
        typer.Option(
            metavar="RECORD|FILE|NAME",
            help="A record, an exported model, a name of `list models`, or a wrapped model (my_file.py:name).",
        ),
    ],
    support: Annotated[
        Path, typer.Option(parser=given_path, metavar="DIR", help="A folder a class, each with pictures of it.")
    ],
    query: Annotated[
        Path, typer.Option(parser=given_path, metavar="DIR", help="Pictures to classify, also in folders below.")
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", parser=given_path, metavar="FILE", help="Write all predictions there, as CSV."),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE", help="Draw a contact sheet of the pictures there, as PNG."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    trust_code: TrustCode = False,
) -> None:
    """Classify pictures of your own with a trained model, from a few examples of each class."""
    for option, path, ending in (("--to", to, ".csv"), ("--sheet", sheet, ".png")):
        if path is not None and path.suffix.lower() != ending:
            raise UserError(f"{option} takes a file that ends in {ending}; got {path}.")
    from mlpip_bench.api.models import load
    from mlpip_bench.datasets.pictures import query_files, support_files
    from mlpip_bench.utils.encoding import csv_text
    from mlpip_bench.utils.files import write_atomically

    # Of what load returns, only pictures, adapt and predict are used: models of another kind need no more.
    trained = load(model, device=device, trust_code=trust_code)
    form = trained.pictures
    (examples, labels), files = support_files(support), query_files(query)
    err.print(f"pictures are {form.in_words}", highlight=False, soft_wrap=True)
    given, asked = form.read(examples), form.read(files)
    adapted = trained.adapt(given, labels)
    probabilities = adapted.predict(asked)
    names = [str(name) for name in adapted.classes]
    frame = _frame([path.relative_to(query).as_posix() for path in files], names, probabilities)
    _print_first(frame)
    if to is not None:
        write_atomically(to, csv_text(frame).encode(errors="backslashreplace"))
        typer.echo(to)
    if sheet is not None:
        numbers = [names.index(label) for label in labels]
        write_atomically(sheet, _sheet(Path(model).name, given, numbers, names, asked, probabilities))
        typer.echo(sheet)


def _frame(files: list[str], classes: list[str], probabilities: NDArray[np.float64]) -> pd.DataFrame:
    """A row a picture: its predicted class with that one's probability, the entropy in nats, and all probabilities."""
    import pandas as pd
    from scipy import special

    best = probabilities.argmax(1)
    frame = pd.DataFrame(
        {
            "file": files,
            "predicted": [classes[number] for number in best],
            "probability": probabilities.max(1),
            "entropy": special.entr(probabilities).sum(1),
        }
    )
    # In brackets, since a class may have the name of another column.
    return pd.concat([frame, pd.DataFrame(probabilities, columns=[f"p({name})" for name in classes])], axis=1)


def _print_first(frame: pd.DataFrame) -> None:
    table = folded_table("file", "predicted", "probability", "entropy (nats)")
    for row in frame.iloc[:_ROWS, :4].itertuples(index=False):
        table.add_row(Text(row[0]), Text(row[1]), f"{row[2]:.3f}", f"{row[3]:.3f}")
    out.print(table)
    if len(frame) > _ROWS:
        out.print(f"and {len(frame) - _ROWS} more", highlight=False)


def _sheet(
    title: str,
    given: NDArray[np.uint8],
    labels: list[int],
    classes: list[str],
    asked: NDArray[np.uint8],
    probabilities: NDArray[np.float64],
) -> bytes:
    """The contact sheet, as PNG; what no font has of a name is a box there."""
    import warnings

    import numpy as np
    from matplotlib import style

    from mlpip_bench.reporting.figures.sheet import contact_sheet
    from mlpip_bench.reporting.figures.style import STYLE

    content = io.BytesIO()
    with style.context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = contact_sheet(title, given / 255, np.array(labels), classes, asked / 255, probabilities)
        figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
