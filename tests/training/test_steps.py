"""A step as a graph has the numbers of a step, and gives way where it has not; torch's own graphs take a GPU."""

import dataclasses
import math

import pytest
import torch
from training.test_loop import streams

from builders import backbone, in_float64, invoke, make_config, make_method
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.execution import planning
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.training import checkpoints, loop, steps
from mlpip_bench.training.steps import EagerStep, GraphedStep, optimizer_of, step_of
from mlpip_bench.utils.errors import TrialError
from mlpip_bench.utils.numerics import Numerics

SPEC = backbone("conv4", (1, 8, 8), blocks=2, channels=4, dropout=0.2)
PLAN = TrainingPlan(
    iterations=9, tasks_per_batch=2, train_queries=2, learning_rate=0.01, halve_every=2, clip_norm=0.1,
    validate_every=5, validation_tasks=4,
)  # fmt: skip
METHODS = {"versa": {"dropout": True}, "protonets": {}, "maml": {"train_steps": 2}, "nonamortized_vi": {}}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph takes a GPU")


def build(name: str):
    return make_method(name, "running", spec=SPEC, **METHODS[name])


def trained(name: str, wrap, stream: TaskStream, device: str = "cpu"):
    """Losses, and what a step changed, after some steps; ``wrap`` makes the step out of the one by operations."""
    method = build(name).double().to(device).train()  # in float32 Adam makes steps of what rounding leaves of zeros
    step = wrap(EagerStep(method, optimizer_of(method, PLAN), PLAN.clip_norm))
    losses = []
    with torch.random.fork_rng(devices=["cuda"] if device == "cuda" else []):
        for iteration in range(PLAN.iterations):
            torch.manual_seed(iteration)
            batch = in_float64(stream.batch(iteration * 2, 2))
            losses.append(step([batch], PLAN.rate(iteration)))
    return torch.stack(losses), method.state_dict(), step


@pytest.mark.parametrize("name", METHODS)
def test_a_replayed_step_has_the_numbers_of_the_step(name):
    said = []
    replays = []

    def capture(work):
        return lambda: replays.append(1) or work()

    ours = trained(name, lambda eager: GraphedStep(eager, said.append, capture=capture), streams()[0])
    others = trained(name, lambda eager: eager, streams()[0])
    torch.testing.assert_close(ours[:2], others[:2], rtol=1e-5, atol=1e-8)
    assert len(replays) == PLAN.iterations - 4  # after three steps, and the one that is captured
    assert not said


def test_a_replayed_step_has_the_classes_of_its_own_tasks():
    def classes_in_losses(wrap):
        seen, method = [], build("protonets").double().train()
        loss = method.loss
        method.loss = lambda batch: seen.append(batch.classes.clone()) or loss(batch)
        step = wrap(EagerStep(method, optimizer_of(method, PLAN), PLAN.clip_norm))
        for iteration in range(PLAN.iterations):
            step([in_float64(streams()[0].batch(iteration * 2, 2))], 0.01)
        return torch.stack(seen)

    ours = classes_in_losses(lambda eager: GraphedStep(eager, pytest.fail, capture=lambda work: work))
    others = classes_in_losses(lambda eager: eager)
    assert torch.equal(ours[:4], others[:4])
    assert torch.equal(ours[5:], others[4:])  # the first replay is compared with the step itself: its tasks twice
    assert not torch.equal(others[0], others[1])


def frozen_tasks(eager, work):
    batch = in_float64(streams()[0].batch(100, 2))
    return lambda: eager([batch], 0.01)


def frozen_noise(eager, work):
    def replay():
        torch.manual_seed(7)
        return work()

    return replay


def half_a_step(eager, work):
    def replay():
        loss = work()
        with torch.no_grad():
            for parameter, kept in zip(eager.method.parameters(), half_a_step.before, strict=True):
                parameter.copy_((parameter + kept) / 2)
        return loss

    half_a_step.before = [p.detach().clone() for p in eager.method.parameters()]
    return replay


def nothing_moves(eager, work):
    return lambda: torch.zeros(())


def cannot(eager, work):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (frozen_tasks, "gives other numbers"),
        (frozen_noise, "other numbers"),
        (nothing_moves, "other"),
        (half_a_step, "other"),
        (cannot, "not"),
    ],
)
def test_a_graph_that_is_not_the_step_is_left_with_one_message(capture, reason):
    said = []

    def wrap(eager):
        return GraphedStep(eager, said.append, capture=lambda work: capture(eager, work))

    ours = trained("versa", wrap, streams()[0])
    others = trained("versa", lambda eager: eager, streams()[0])
    torch.testing.assert_close(ours[:2], others[:2], rtol=0, atol=0)
    assert len(said) == 1
    assert reason in said[0]


def test_batches_of_another_shape_are_not_given_to_a_graph():
    stream = streams()[0]
    method = build("protonets")
    replays = []
    eager = EagerStep(method, optimizer_of(method, PLAN), 0.0)
    step = GraphedStep(eager, print, capture=lambda work: lambda: replays.append(1) or work())
    for tasks in (2, 2, 2, 2, 2, 1, 2):
        step([stream.batch(0, tasks)], 0.01)
    assert len(replays) == 2


def test_there_is_a_graph_on_cuda_alone():
    method = build("protonets")
    kinds = {("auto", "cpu"): EagerStep, ("off", "cuda"): EagerStep, ("auto", "cuda"): GraphedStep}
    kinds |= {("on", "cuda"): GraphedStep, ("auto", "mps"): EagerStep}
    for (graph, device), expected in kinds.items():
        optimizer = optimizer_of(method, PLAN)
        step = step_of(method, optimizer, PLAN, graph=graph, device=torch.device(device), say=print)
        assert isinstance(step, expected)


@pytest.mark.parametrize("every", [1, 4, 100])
def test_losses_that_are_read_together_name_the_iteration_that_went_wrong(every, tmp_path, monkeypatch):
    monkeypatch.setitem(loop._STEPS_BETWEEN_READS, "cpu", every)
    method, calls = make_method("protonets", spec=SPEC), []
    honest = method.loss
    plan = dataclasses.replace(PLAN, iterations=20, validate_every=5)

    def loss(batch):
        calls.append(1)
        return honest(batch) * (math.nan if len(calls) == 8 else 1.0)

    monkeypatch.setattr(method, "loss", loss)
    with pytest.raises(TrialError, match="is not finite at iteration 7"):
        loop.train(method, plan, *streams(), metrics=(ACCURACY, NLL), seed=0, checkpoint=tmp_path / "c.pt")
    assert len(calls) == {1: 8, 4: 9, 100: 10}[every]  # four after validation's read, or before the next validation
    kept = checkpoints.load_checkpoint(tmp_path / "c.pt")
    assert kept.iteration == 5
    assert all(v.isfinite().all() for v in kept.model.values())


@pytest.mark.parametrize("every", [3, 100])
def test_training_is_the_same_however_losses_are_read(every, tmp_path, monkeypatch):
    def run(name: str) -> checkpoints.TrainingState:
        method = make_method("protonets", spec=SPEC)
        return loop.train(method, PLAN, *streams(), metrics=(ACCURACY, NLL), seed=0, checkpoint=tmp_path / name)

    one_by_one = run("a.pt")
    monkeypatch.setitem(loop._STEPS_BETWEEN_READS, "cpu", every)
    together = run("b.pt")
    assert together.history == one_by_one.history
    assert all(torch.equal(value, together.model[key]) for key, value in one_by_one.model.items())


def test_the_option_is_in_no_key_and_refused_where_there_is_no_gpu(tmp_path):
    config = make_config(methods=("protonets",), benches=("omni5w1s",), device="cpu")
    (plain,) = planning.plan_trials(config)
    (without,) = planning.plan_trials(dataclasses.replace(config, numerics=Numerics(graph="off")))
    assert (plain.key, plain.training_key, plain.config) == (without.key, without.training_key, without.config)
    command = ("run", "--methods", "protonets", "--bench", "omni5w1s", "--device", "cpu", "--results", tmp_path)
    refused = invoke(*command, "--graph", "on")
    assert refused.exit_code == 2
    assert "graph on is a matter of CUDA GPUs" in " ".join(refused.output.split())
    assert "off, on" in " ".join(invoke(*command, "--graph", "yes").output.split())


@needs_gpu
@pytest.mark.parametrize("name", METHODS)
def test_a_cuda_graph_has_the_numbers_of_the_step(name):
    stream = streams()[0]
    stream.pool.device = stream.device = torch.device("cuda")
    said = []
    ours = trained(name, lambda eager: on_gpu(eager, said), stream, "cuda")
    others = trained(name, lambda eager: eager, stream, "cuda")
    assert not said
    assert ours[2].graphed
    torch.testing.assert_close(ours[:2], others[:2], rtol=1e-3, atol=1e-4)


def on_gpu(eager: EagerStep, said: list[str]) -> GraphedStep:
    """As a run has it."""
    return GraphedStep(eager, said.append, capture=steps._captured, warm_up=steps._on_a_stream_of_its_own)
