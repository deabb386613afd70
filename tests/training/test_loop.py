import dataclasses
import math
import signal
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import backbone, make_method, make_pool, trained_classifiers
from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.predict import predict, score
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.training import checkpoints, loop
from mlpip_bench.utils import interrupts
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.seeding import seed_from

SPEC = backbone("conv4", (1, 8, 8), blocks=2, channels=4, dropout=0.2)
METRICS = (ACCURACY, NLL)
PLAN = TrainingPlan(
    iterations=12, tasks_per_batch=2, train_queries=2, learning_rate=0.01, validate_every=5, validation_tasks=4
)


def streams() -> tuple[TaskStream, TaskStream]:
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 200, (9, 1, 1, 8, 8))
    pool = make_pool((prototypes + rng.integers(0, 55, (9, 6, 1, 8, 8))).astype(np.uint8))
    return TaskStream(pool, TaskShape(3, 1, 2), "train", 0), TaskStream(pool, TaskShape(3, 1, 3), "validation")


CLASSIFIERS = [n for n in registry.method_names() if "classification" in registry.method(n).handles]


def run(method, *, checkpoint: Path, step=None, plan: TrainingPlan = PLAN, log=None) -> checkpoints.TrainingState:
    return loop.train(method, plan, *streams(), metrics=METRICS, seed=0, checkpoint=checkpoint, step=step, log=log)


def build(name: str):
    return make_method(name, "running", spec=SPEC, **{"versa": {"dropout": True}}.get(name, {}))


class Killed(BaseException):
    """Stands for a kill: nothing catches it on the way."""


@pytest.mark.parametrize("name", trained_classifiers())
@pytest.mark.parametrize("kills", [[1], [3, 7], [5, 6, 11]])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(name, kills, tmp_path, monkeypatch):
    whole = run(build(name), checkpoint=tmp_path / "whole.pt")
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", -1.0)  # a checkpoint at every iteration

    for stop in kills:

        def step(completed: int, note: str = "", stop: int = stop) -> None:
            if completed == stop:
                raise Killed

        with pytest.raises(Killed):
            run(build(name), checkpoint=tmp_path / "parts.pt", step=step)
    parts = run(build(name), checkpoint=tmp_path / "parts.pt")

    assert parts.iteration == whole.iteration == 12
    assert parts.history == whole.history
    times = [parts.seconds_at[int(entry["iteration"])] for entry in parts.history]
    assert 0 < times[0] < times[-1] <= parts.seconds
    assert times == sorted(times)
    assert parts.best_iteration == whole.best_iteration
    for key, value in whole.model.items():
        assert torch.equal(parts.model[key], value), key
        assert torch.equal(parts.best_model[key], whole.best_model[key]), key


@pytest.mark.parametrize("at", [5, 10, 12])
def test_a_validation_that_a_signal_ends_is_made_first_when_training_goes_on(at, tmp_path, monkeypatch):
    whole = run(build("versa"), checkpoint=tmp_path / "whole.pt")
    validated = []

    def a_signal_comes(method, stream, tasks, step):
        validated.append(5 * len(validated) + 5)
        if min(validated[-1], 12) == at:
            monkeypatch.setattr(interrupts._State, "seen", signal.SIGTERM)
        return predict(method, stream, tasks, step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "predict", a_signal_comes)
        with pytest.raises(interrupts.Interrupted):
            run(build("versa"), checkpoint=tmp_path / "parts.pt")
    monkeypatch.setattr(interrupts._State, "seen", 0)
    saved = checkpoints.load_checkpoint(tmp_path / "parts.pt")
    assert (saved.iteration, len(saved.history)) == (at, len(validated) - 1)
    assert checkpoints.iterations_done(tmp_path / "parts.pt") == at - 1  # so that nobody takes it for trained

    trained = []
    parts = run(build("versa"), checkpoint=tmp_path / "parts.pt", step=lambda done, _note="": trained.append(done))
    assert trained == list(range(at + 1, 13))
    assert parts.history == whole.history
    assert sorted(parts.seconds_at) == [5, 10, 12]
    assert parts.unvalidated is None
    for key, value in whole.model.items():
        assert torch.equal(parts.model[key], value), key
        assert torch.equal(parts.best_model[key], whole.best_model[key]), key


class Logged:
    """Takes what is logged, each value once."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], float] = {}

    def __call__(self, points: loop.Points) -> None:
        new = {(iteration, name): value for iteration, values in points.items() for name, value in values.items()}
        assert not new.keys() & self.found.keys()
        self.found |= new


def test_what_is_logged_is_the_history_and_the_loss_and_rate_of_each_iteration(tmp_path):
    logged, plan = Logged(), dataclasses.replace(PLAN, halve_every=4)
    done = run(build("versa"), checkpoint=tmp_path / "c.pt", plan=plan, log=logged)
    expected = {(i, "training/learning_rate"): 0.01 / 2 ** ((i - 1) // 4) for i in range(1, 13)}
    for entry in done.history:
        iteration = int(entry["iteration"])
        expected |= {(iteration, f"validation/{metric.name}"): entry[metric.name] for metric in METRICS}
        expected[iteration, "training/loss"] = entry["loss"]
        expected[iteration, "training/seconds"] = done.seconds_at[iteration]
    assert logged.found.keys() == expected.keys() | {(i, "training/loss") for i in range(1, 13)}
    assert {point: logged.found[point] for point in expected} == pytest.approx(expected)


@pytest.mark.parametrize("every", [0.0, math.inf], ids=["often", "seldom"])
@pytest.mark.parametrize("end", [3, 5, 7, 10, "a signal in the validation"])
def test_what_was_logged_is_not_logged_again_when_training_goes_on(end, every, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", every - 1)  # at each iteration, or at validations alone
    whole, parts = Logged(), Logged()
    run(build("versa"), checkpoint=tmp_path / "whole.pt", log=whole)

    def step(completed: int, note: str = "") -> None:
        if completed == end:
            raise Killed

    def a_signal_comes(*args):
        monkeypatch.setattr(interrupts._State, "seen", signal.SIGTERM)
        return predict(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "predict", a_signal_comes if isinstance(end, str) else predict)
        with pytest.raises((Killed, interrupts.Interrupted)):
            run(build("versa"), checkpoint=tmp_path / "parts.pt", step=step, log=parts)
    monkeypatch.setattr(interrupts._State, "seen", 0)
    before = len(parts.found)
    run(build("versa"), checkpoint=tmp_path / "parts.pt", log=parts)
    assert len(parts.found) > before
    assert {p: v for p, v in parts.found.items() if p[1] != "training/seconds"} == {
        p: v for p, v in whole.found.items() if p[1] != "training/seconds"
    }


def test_the_time_of_logging_is_no_part_of_the_training_and_makes_no_checkpoint_due(tmp_path, monkeypatch):
    passed, saves = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: passed[0])
    save = loop.save_checkpoint
    monkeypatch.setattr(loop, "save_checkpoint", lambda state, path: (saves.append(state.iteration), save(state, path)))

    def slow(points: loop.Points) -> None:
        passed[0] += 1000

    done = run(build("versa"), checkpoint=tmp_path / "c.pt", log=slow)
    assert saves == [5, 10, 12]
    assert done.seconds == 0
    assert set(done.seconds_at.values()) == {0}


def test_training_leaves_the_global_generator_alone(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    method = build("versa")
    torch.manual_seed(1)
    run(method, checkpoint=tmp_path / "c.pt")
    assert torch.equal(torch.rand(3), expected)


def test_the_best_model_is_the_one_of_the_best_validation(tmp_path):
    done = run(build("protonets"), checkpoint=tmp_path / "c.pt")
    assert [h["iteration"] for h in done.history] == [5, 10, 12]
    best = max(done.history, key=lambda h: h["accuracy"])
    assert done.best_score == best["accuracy"]
    method = build("protonets")
    method.load_state_dict(done.best_model)
    predictions = predict(method, streams()[1], 4)
    assert math.fsum(score(ACCURACY, predictions)) / 4 == pytest.approx(best["accuracy"])
    assert math.fsum(score(NLL, predictions)) / 4 == pytest.approx(
        next(h["nll"] for h in done.history if h["iteration"] == done.best_iteration)
    )


def test_the_model_of_the_best_nll_is_kept_as_well(tmp_path):
    done = run(build("protonets"), checkpoint=tmp_path / "c.pt")
    best = min(done.history, key=lambda h: h["nll"])
    chosen = checkpoints.load_checkpoint(tmp_path / "c.pt").best_by["nll"]
    assert (chosen["iteration"], chosen["score"]) == (best["iteration"], -best["nll"])
    method = build("protonets")
    method.load_state_dict(chosen["model"])
    assert math.fsum(score(NLL, predict(method, streams()[1], 4))) / 4 == pytest.approx(best["nll"])


def test_the_last_model_is_a_value_that_loading_another_state_does_not_change(tmp_path):
    method = build("protonets")
    done = run(method, checkpoint=tmp_path / "c.pt")
    method.load_state_dict(done.best_model)  # as the runner does before it tests the best model
    kept = checkpoints.load_checkpoint(tmp_path / "c.pt")
    assert all(torch.equal(done.model[key], value) for key, value in kept.model.items())
    assert any(not torch.equal(done.model[key], value) for key, value in build("protonets").state_dict().items())


def test_the_learning_rate_is_halved_on_schedule(tmp_path):
    rates = []
    method, plan = build("protonets"), TrainingPlan(**{**vars(PLAN), "halve_every": 4})
    original = torch.optim.Adam.step

    def step(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        run(method, checkpoint=tmp_path / "c.pt", plan=plan)
    assert rates == [0.01] * 4 + [0.005] * 4 + [0.0025] * 4


SCHEDULES = {
    "constant": {},
    "halving": {"halve_every": 4},
    "cosine": {"schedule": "CosineAnnealingLR"},
    "steps": {"schedule": "StepLR", "step_size": 5, "gamma": 0.3},
}


@pytest.mark.parametrize("warmup", [0, 1, 6])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_is_that_of_torchs_schedulers(name, warmup):
    plan = dataclasses.replace(PLAN, iterations=40, warmup=warmup, **SCHEDULES[name])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=plan.learning_rate)
    schedulers = torch.optim.lr_scheduler
    main = {
        "constant": lambda: schedulers.ConstantLR(optimizer, factor=1),
        "halving": lambda: schedulers.StepLR(optimizer, 4, 0.5),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, 40 - warmup),
        "steps": lambda: schedulers.StepLR(optimizer, 5, 0.3),
    }[name]
    parts = [schedulers.LinearLR(optimizer, total_iters=warmup), main()] if warmup else [main()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR steps its parts with a deprecated argument
        scheduler = schedulers.SequentialLR(optimizer, parts, [warmup]) if warmup else parts[0]
        for iteration in range(40):
            assert plan.rate(iteration) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), iteration
            optimizer.step()
            scheduler.step()


OPTIMIZERS = {
    "adamw": ({"optimizer": "AdamW", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    "sgd": ({"optimizer": "SGD", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    "adam": ({"weight_decay": 0.1}, lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    "clipped": ({"clip_norm": 0.05, "optimizer": "SGD"}, lambda p: torch.optim.SGD(p, lr=0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_torchs_optimizer_by_hand(name, tmp_path):
    settings, build_optimizer = OPTIMIZERS[name]
    done = run(build("protonets"), checkpoint=tmp_path / "c.pt", plan=dataclasses.replace(PLAN, **settings))
    method, training = build("protonets"), streams()[0]
    optimizer = build_optimizer(method.parameters())
    lengths = []
    with torch.random.fork_rng():
        for iteration in range(PLAN.iterations):
            torch.manual_seed(seed_from("noise", 0, iteration))
            optimizer.zero_grad()
            method.train().loss(training.batch(iteration * 2, 2)).backward()
            length = math.sqrt(sum(float(p.grad.square().sum()) for p in method.parameters()))
            lengths.append(length)
            if "clip_norm" in settings and length > settings["clip_norm"]:
                for p in method.parameters():
                    p.grad *= settings["clip_norm"] / length
            optimizer.step()
    if "clip_norm" in settings:
        assert max(lengths) > 2 * settings["clip_norm"]
    for key, value in method.state_dict().items():
        torch.testing.assert_close(done.model[key], value, rtol=1e-4, atol=1e-6)


ALL_SETTINGS = [
    {"optimizer": "SGD", "momentum": 0.9, "schedule": "CosineAnnealingLR", "warmup": 3, "clip_norm": 0.1},
    {"optimizer": "AdamW", "weight_decay": 0.1, "schedule": "StepLR", "step_size": 4, "warmup": 2},
]


@pytest.mark.parametrize("settings", ALL_SETTINGS, ids=lambda s: s["optimizer"])
def test_a_run_with_other_optimizers_and_schedules_resumes_bit_for_bit(settings, tmp_path, monkeypatch):
    plan = dataclasses.replace(PLAN, **settings)
    whole = run(build("versa"), checkpoint=tmp_path / "whole.pt", plan=plan)
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", -1.0)

    def step(completed: int, note: str = "") -> None:
        if completed in (2, 7):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run(build("versa"), checkpoint=tmp_path / "parts.pt", step=step, plan=plan)
    parts = run(build("versa"), checkpoint=tmp_path / "parts.pt", plan=plan)
    assert parts.history == whole.history
    for key, value in whole.model.items():
        assert torch.equal(parts.model[key], value), key
        assert torch.equal(parts.best_by["nll"]["model"][key], whole.best_by["nll"]["model"][key]), key


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"momentum": 0.9}, "momentum is SGD's"),
        ({"schedule": "StepLR"}, "has a step_size"),
        ({"step_size": 3}, "has a step_size"),
        ({"schedule": "CosineAnnealingLR", "halve_every": 5}, "set halve_every=0"),
        ({"warmup": 12}, "less than the 12 iterations"),
        ({"clip_norm": -1.0}, "clip_norm must be"),
        ({"gamma": 0.0}, "gamma must be"),
    ],
)
def test_plans_that_make_no_sense_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(PLAN, **wrong)


@pytest.mark.parametrize("what", ["loss", "parameter"])
def test_training_stops_at_a_number_that_is_not_finite_and_keeps_the_last_good_checkpoint(what, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", -1.0)
    method, path = build("protonets"), tmp_path / "c.pt"
    honest = method.loss
    calls = []

    def loss(batch):
        calls.append(1)
        value = honest(batch)
        if len(calls) == 8:
            if what == "loss":
                return value * math.nan
            value.register_hook(lambda gradient: gradient * math.nan)
        return value

    monkeypatch.setattr(method, "loss", loss)
    with pytest.raises(TrialError) as error:
        run(method, checkpoint=path)
    assert str(path) in str(error.value)
    assert "learning rate" in str(error.value)
    kept = checkpoints.load_checkpoint(path)
    assert kept.iteration == 7
    assert all(v.isfinite().all() for v in kept.model.values())


def test_parameters_that_are_not_finite_are_said_before_a_validation_predicts_with_them(tmp_path):
    method = build("protonets")
    loss = method.loss  # which is finite, before the step

    def with_a_gradient_that_is_none(batch):
        value = loss(batch)
        value.register_hook(lambda gradient: gradient * math.nan)
        return value

    method.loss = with_a_gradient_that_is_none
    with pytest.raises(TrialError, match=r"parameter or a statistic is not finite at iteration 1; .*learning rate"):
        run(method, checkpoint=tmp_path / "c.pt", plan=dataclasses.replace(PLAN, validate_every=1))


def test_a_score_that_is_not_finite_is_an_error_not_a_record():
    training, _ = streams()
    method = build("protonets").eval()
    with torch.no_grad():
        next(method.parameters()).fill_(math.nan)
    with pytest.raises(TrialError, match="not finite"):
        Evaluation(method, "best", training, 4).scores([NLL])


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("<html>not found</html>")
    elif how == "flipped":
        with zipfile.ZipFile(path) as archive:
            largest = max(archive.infolist(), key=lambda i: i.file_size)
        content[largest.header_offset + 200] ^= 0xFF
        path.write_bytes(content)
    elif how == "other":
        torch.save({"weights": torch.zeros(3)}, path)
    else:
        torch.save({"iteration": Evil()}, path)


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/mlpip_bench_was_attacked"),))


@pytest.mark.parametrize("how", ["truncated", "empty", "text", "flipped", "other", "hostile"])
def test_a_damaged_checkpoint_is_named_and_never_run(how, tmp_path):
    path = tmp_path / "c.pt"
    run(build("protonets"), checkpoint=path)
    damage(path, how)
    with pytest.raises(UserError) as error:
        run(build("protonets"), checkpoint=path)
    assert str(path) in str(error.value)
    assert "Delete it" in str(error.value)
    assert not Path("/tmp/mlpip_bench_was_attacked").exists()


def test_a_method_is_prepared_once_before_its_one_validation_and_not_where_it_is_trained(tmp_path):
    training, validation = streams()
    plugin, asked = registry.method("nearest_mean"), []

    class Noted(plugin):
        def prepare(self, training):
            asked.append((training, self.training, torch.is_grad_enabled()))
            super().prepare(training)

    for trainable, prepared in ((False, 1), (False, 1), (True, 1)):  # the second goes on where the first ended
        Noted.trainable = trainable
        method = Noted(make_method("nearest_mean", spec=SPEC).problem, plugin.Settings(center_tasks=2))
        method.register_parameter("unused", torch.nn.Parameter(torch.zeros(())))
        checkpoint = tmp_path / f"{trainable}.pt"
        plan = dataclasses.replace(PLAN, iterations=1)
        if trainable:
            method.loss = lambda batch, method=method: method.unused * batch.query.x.sum()
        loop.train(method, plan, training, validation, metrics=METRICS, seed=0, checkpoint=checkpoint)
        assert asked == [(training, False, False)] * prepared


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_do_not_depend_on_how_many_tasks_are_tested_at_once(name, monkeypatch):
    from mlpip_bench.evaluation import predict as predicting

    _, tasks = streams()
    method, scores = build(name), []
    for chunk in (1, 3, 8):
        monkeypatch.setitem(predicting._TASKS_AT_ONCE, "cpu", chunk)
        scores.append(score(NLL, predict(method, tasks, 8)))
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)


def test_evaluation_shares_one_pass_between_protocols(monkeypatch):
    _, tasks = streams()
    method = build("protonets")
    evaluation = Evaluation(method, "best", tasks, 6)
    calls = []
    original = method.amortize
    monkeypatch.setattr(method, "amortize", lambda support: (calls.append(1), original(support))[1])
    for name in ("accuracy", "nll"):
        (scores,) = registry.protocol(name)().measure(evaluation)
        assert len(scores.per_task) == 6
        assert (scores.way, scores.shot, scores.queries) == (3, 1, 3)
    assert len(calls) == 1
