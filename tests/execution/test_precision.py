"""``--precision bf16``: the backbone alone computes in it, with the parameters of the moment."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.execution import planning
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method
from mlpip_bench.nn.backbone import Backbone
from mlpip_bench.records import store
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.utils.choices import NORM_MODES, Precision
from mlpip_bench.utils.numerics import Numerics
from tests.builders import budget, invoke, make_config

PAPER_METHODS = ("versa", "amortized_vi", "nonamortized_vi", "maml", "protonets")
KINDS = {"classification": ("omni5w1s", "conv4"), "reconstruction": ("views1s", "view_encoder")}
CASES = [
    (name, kind)
    for name in registry.method_names()
    for kind in registry.method(name).handles
    if kind in KINDS and registry.method(name).trainable
]


def trial_of(method: str, precision: Precision, kind: str = "classification", norm: str = "metabn") -> Trial:
    """On images, with few filters; and few steps, since each goes on from the rounding of the one before."""
    bench, backbone = KINDS[kind]
    steps = {"train_steps": 5} if getattr(registry.method(method).Settings(), "train_steps", 0) > 5 else {}
    config = make_config(
        methods=(method,),
        benches=(bench,),
        backbone=backbone,
        backbone_settings={"channels": 8},
        norms=(norm,),
        settings=steps | ({"train_queries": 3} if kind == "classification" else {}),
        numerics=Numerics(precision),
    )
    (trial,) = planning.plan_trials(config)
    return trial


def made(trial: Trial, tasks: int = 1) -> tuple[Method, TaskBatch]:
    return trial.build_method(), trial.streams()["train"].batch(0, tasks)


def loss(method: Method, batch: TaskBatch) -> torch.Tensor:
    """The same each time: what a method counts of its losses is set back."""
    torch.manual_seed(0)
    before = {name: buffer.clone() for name, buffer in method.named_buffers()}
    value = method.loss(batch)
    for name, buffer in method.named_buffers():
        buffer.copy_(before[name])
    return value


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_changed_parameter_changes_the_loss_within_the_context_of_a_run(name, kind, precision):
    trial = trial_of(name, precision, kind)
    method, batch = made(trial)
    if not list(method.parameters()):
        pytest.skip("it has no parameters")
    with trial.numerics.applied():
        before = loss(method, batch)
        before.backward()
        heard = [p for p in method.parameters() if p.grad is not None and p.grad.abs().max() > 1e-6]
        assert heard
        for parameter in heard:
            kept = parameter.detach().clone()
            with torch.no_grad():
                parameter -= 0.1 * max(1.0, kept.norm().item()) * parameter.grad / parameter.grad.norm()
            assert loss(method, batch).item() != before.item()
            with torch.no_grad():
                parameter.copy_(kept)
        assert loss(method, batch).item() == before.item()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_gradient_is_that_of_float32_but_for_rounding(name, kind):
    gradients = {}
    for precision in ("float32", "bf16"):
        torch.manual_seed(0)
        trial = trial_of(name, precision, kind)
        method, batch = made(trial, 4)  # of one task rounding is a larger part
        if not list(method.parameters()):
            pytest.skip("it has no parameters")
        with trial.numerics.applied():
            loss(method, batch).backward()
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in method.parameters()]
        assert {slope.dtype for slope in slopes} == {torch.float32}
        gradients[precision] = torch.cat([slope.flatten() for slope in slopes])
    assert not torch.equal(gradients["bf16"], gradients["float32"])
    assert torch.cosine_similarity(gradients["bf16"], gradients["float32"], dim=0) > 0.9


@pytest.mark.parametrize(
    ("name", "norm"), [("protonets", norm) for norm in NORM_MODES] + [(name, "metabn") for name in PAPER_METHODS[:-1]]
)
def test_convolutions_alone_are_in_bf16(name, norm):
    trial = trial_of(name, "bf16", norm=norm)
    method, batch = made(trial)
    of_convolutions, of_backbones = set(), set()
    for module in method.modules():
        if isinstance(module, Backbone):
            module.register_forward_hook(lambda m, x, y: of_backbones.add(y[0].dtype))
    convolve = torch.nn.functional.conv2d

    def watched(*args, **kwargs):
        convolved = convolve(*args, **kwargs)
        of_convolutions.add(convolved.dtype)
        return convolved

    with pytest.MonkeyPatch.context() as patch, trial.numerics.applied():
        patch.setattr(torch.nn.functional, "conv2d", watched)
        value = loss(method, batch)
        q = method.eval().amortize(batch.support)
        predictive = method.predictive(q, batch.query.x)
    assert of_convolutions == {torch.bfloat16}
    types = {value.dtype, q.psi.mean.dtype, predictive.log_prob(batch.query.y).dtype}
    types |= {m.dtype for layer in q.norm_statistics for m in (layer.mean, layer.variance)}
    assert types <= {torch.float32, torch.float64}


@pytest.mark.parametrize("name", PAPER_METHODS)
def test_what_is_scored_is_predicted_in_float32(name):
    trial = trial_of(name, "bf16")
    method, stream = trial.build_method(), trial.streams()["test"]
    before = [predictive.logits for predictive, _ in predict(method, stream, 2)]
    with trial.numerics.applied():
        within = [predictive.logits for predictive, _ in predict(method, stream, 2)]
    assert all(map(torch.equal, within, before))


def scores(folder: Path) -> dict[str, list[list[float]]]:
    return {r.protocol: [list(s.per_task) for s in r.scores] for r in store.load_all(folder)}


@pytest.mark.parametrize("method", ["versa", "maml"])
def test_a_checkpoint_has_the_same_scores_in_another_process(tmp_path, method):
    command = [
        *("run", "--methods", method, "--bench", "omni5w1s", "--source", "procedural", "--precision", "bf16"),
        *("--backbone", "conv4,channels=8", "--protocols", "accuracy,nll", "--results", str(tmp_path)),
        *budget(iterations=6, validate_every=3),
    ]
    assert invoke(*command).exit_code == 0
    trained = scores(tmp_path)
    (record, *_) = store.load_all(tmp_path)
    assert record.config["precision"] == "bf16"
    checkpoints = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    for path in (tmp_path / "records").rglob("*.*"):
        path.unlink()
    again = subprocess.run(
        [sys.executable, "-m", "mlpip_bench", *command],
        env={**os.environ, "MLPIP_BENCH_DATA": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "training" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")} == checkpoints
    assert scores(tmp_path) == trained


@pytest.mark.parametrize("units", [False, True])
def test_a_processor_without_units_for_it_is_warned_of_once(monkeypatch, tmp_path, units):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": units}, raising=False)
    command = ("run", "--methods", "protonets,versa", "--bench", "omni5w1s", "--source", "procedural", "--dry-run")
    said = invoke(*command, "--results", tmp_path, "--precision", "bf16").output
    assert said.count("no units for bfloat16") == (not units)
    assert "no units for bfloat16" not in invoke(*command, "--results", tmp_path).output


@pytest.mark.slow
@pytest.mark.parametrize("method", PAPER_METHODS)
def test_training_in_bf16_comes_to_the_accuracy_of_float32(tmp_path, data_root, method):
    found = {}
    for precision in ("float32", "bf16"):
        folder = tmp_path / precision
        said = invoke(
            *("run", "--methods", method, "--bench", "omni5w1s", "--source", "real", "--data-root", data_root),
            *("--precision", precision, "--seeds", "0,1,2", "--protocols", "accuracy", "--results", folder),
        )
        assert said.exit_code == 0, said.output
        found[precision] = [statistics.fmean(r.scores[0].per_task) for r in store.load_all(folder)]
        assert len(found[precision]) == 3
    difference = 100 * (statistics.fmean(found["bf16"]) - statistics.fmean(found["float32"]))
    assert abs(difference) < 0.5, found
