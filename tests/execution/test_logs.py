"""Logs of trainings, read back by the libraries that they are for."""

import dataclasses
import errno
import io
import json
import math
import os
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from PIL import Image

import mlpip_bench
from builders import budget, invoke
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training import loggers
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra: pip install '.[tensorboard]'"
)

SMALL = {"validate_every": 2, "validation_tasks": 2, "halve_every": 3}
TYPED = ["--bench=omni5w1s", "--methods=protonets", "--source=procedural", "--device=cpu"]
HISTORY = {"accuracy": "validation/accuracy", "nll": "validation/nll"}

Curve = dict[int, float]


def run(results: Path, *more: object, **settings: object) -> Any:
    return invoke("run", *TYPED, *budget(iterations=5, **SMALL, **settings), "--results", results, *more)


def records(results: Path) -> list[Record]:
    return sorted(store.load_all(results), key=lambda record: (record.seed, record.protocol))


def place(results: Path, library: str = "tensorboard") -> Path:
    (found,) = results.glob(f"logs/{library}/*/*/seed*")
    return found


class Events:
    """What TensorBoard shows of a training."""

    def __init__(self, folder: Path) -> None:
        self.found = accumulators.EventAccumulator(
            str(folder), {"scalars": 0, "images": 0, "tensors": 0}, purge_orphaned_data=False
        ).Reload()

    def curves(self) -> dict[str, Curve]:
        found = {}
        for name in self.found.Tags()["scalars"]:
            events = self.found.Scalars(name)
            found[name] = {event.step: event.value for event in events}
            assert len(found[name]) == len(events), f"steps of {name} are there twice"
        return found

    def pictures(self) -> dict[str, Any]:
        images = {name: self.found.Images(name) for name in self.found.Tags()["images"]}
        return {
            name: np.asarray(Image.open(io.BytesIO(image.encoded_image_string))) for name, (image,) in images.items()
        }

    def text(self) -> str:
        (event,) = self.found.Tensors("configuration/text_summary")
        return str(event.tensor_proto.string_val[0].decode())


def check_curves(curves: dict[str, Curve], made: list[Record]) -> None:
    """Compare what was logged with the records of the same trial."""
    training = made[0].training
    history = {int(entry["iteration"]): entry for entry in training["history"]}
    assert list(history) == [2, 4, 5]
    for metric, name in HISTORY.items():
        assert curves[name] == pytest.approx({step: entry[metric] for step, entry in history.items()})
    assert list(curves["training/loss"]) == [1, 2, 3, 4, 5]
    for step, entry in history.items():
        assert curves["training/loss"][step] == pytest.approx(entry["loss"])
    assert curves["training/learning_rate"] == pytest.approx(
        {step: 1e-3 / 2 ** ((step - 1) // 3) for step in range(1, 6)}
    )
    assert curves["training/seconds"] == pytest.approx(dict(zip(history, training["history_seconds"], strict=True)))
    expected = {}
    for record in made:
        for score in record.scores:
            n, sd = len(score.per_task), np.std(score.per_task, ddof=1)
            name = f"test/{record.protocol}/{score.metric} {record.bench} {score.model}"
            expected[name] = {5: np.mean(score.per_task)}
            expected[f"{name} ci95"] = {5: scipy.stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n)}
    tests = {name: curve for name, curve in curves.items() if name.startswith("test/")}
    assert tests.keys() == expected.keys()
    for name, curve in expected.items():
        assert tests[name] == pytest.approx(curve), name


def test_tensorboard_shows_what_the_records_say_and_logging_changes_none_of_it(tmp_path):
    assert run(tmp_path / "a", "--log", "tensorboard").exit_code == 0
    assert run(tmp_path / "b").exit_code == 0
    made, without = records(tmp_path / "a"), records(tmp_path / "b")
    events = Events(place(tmp_path / "a"))
    check_curves(events.curves(), made)
    assert "    bench: omni5w1s\n" in events.text()
    assert "    settings.scale: 1.0" in events.text()
    assert not (tmp_path / "b" / "logs").exists()

    def timeless(record: Record) -> dict[str, Any]:
        found = dataclasses.asdict(record)
        del found["seconds"], found["training"]["seconds"], found["training"]["history_seconds"]
        return found

    assert [timeless(record) for record in made] == [timeless(record) for record in without]


def test_pictures_are_of_the_first_tasks_of_training_and_validation(tmp_path):
    run(tmp_path, "--log=tensorboard", train_queries=4)
    bench = mlpip_bench.load_bench("omni5w1s", source="procedural")
    pictures = Events(place(tmp_path)).pictures()
    assert pictures.keys() == {"tasks/train", "tasks/validation"}
    for split, queries in (("train", 4), ("validation", 15)):
        png = io.BytesIO()
        bench.figure(split=split, queries=queries).savefig(png, format="png")
        np.testing.assert_array_equal(pictures[f"tasks/{split}"], np.asarray(Image.open(png).convert("RGB")))


def test_a_bench_without_pictures_is_logged_without_them(tmp_path):
    options = ["--bench=linear5s", "--methods=exact_linear", *budget(iterations=3)]
    result = invoke("run", *options, "--results", tmp_path, "--log=tensorboard")
    assert result.exit_code == 0
    assert "nothing more is logged" not in result.output
    events = Events(place(tmp_path))
    assert events.pictures() == {}
    assert [name for name in events.curves() if name.startswith("test/")]


# -- a training that goes on ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill: nothing catches it on the way."""


class Killing(Quiet):
    """Kills a training after an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def stage(self, title: str, total: int, start: int = 0) -> Any:
        reporter = super().stage(title, total, start)

        class Stage:
            def __enter__(stage) -> Any:
                reporter.__enter__()
                return stage.step

            def __exit__(stage, *of: Any) -> None:
                reporter.__exit__(*of)

            def step(stage, completed: int, note: str = "") -> None:
                if completed == self.iteration:
                    raise Killed

        return Stage()


def fit(results: Path, reporter: Any = None, **more: Any) -> Any:
    asked = {"source": "procedural", "iterations": 5, "device": "cpu", "log": "tensorboard"} | more
    settings = {**SMALL, "tasks_per_batch": 1}
    return mlpip_bench.fit("protonets", "omni5w1s", results=results, settings=settings, reporter=reporter, **asked)


@pytest.mark.parametrize("kills", [[1], [3], [3, 4], [2, 3]])
def test_a_training_that_goes_on_repeats_no_step(kills, tmp_path):
    for iteration in kills:
        with pytest.raises(Killed):
            fit(tmp_path / "parts", Killing(iteration))
    fit(tmp_path / "parts")
    fit(tmp_path / "whole")
    parts, whole = (Events(place(tmp_path / name)) for name in ("parts", "whole"))
    found, expected = ({n: c for n, c in e.curves().items() if n != "training/seconds"} for e in (parts, whole))
    assert found == expected
    assert {len(curve) for curve in expected.values()} == {3, 5}
    assert parts.text() == whole.text()
    assert parts.pictures().keys() == whole.pictures().keys()


def test_a_training_that_is_done_again_takes_the_place_of_the_one_before(tmp_path):
    for _ in range(2):
        run(tmp_path, "--log=tensorboard", "--overwrite=always")
    check_curves(Events(place(tmp_path)).curves(), records(tmp_path))


def test_a_model_that_was_trained_without_a_log_has_its_scores_in_one(tmp_path):
    run(tmp_path, "--protocols=nll")
    run(tmp_path, "--protocols=accuracy", "--log=tensorboard")
    events = Events(place(tmp_path))
    assert {name.split(" ")[0] for name in events.curves()} == {"test/accuracy/accuracy"}
    assert "bench: omni5w1s" in events.text()


def test_a_model_of_python_without_a_folder_is_logged_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = mlpip_bench.fit("protonets", "omni5w1s", source="procedural", iterations=2, log="tensorboard")
    curve = Events(place(tmp_path / "runs")).curves()["validation/accuracy"]
    assert curve == pytest.approx({2: model.training.history[-1]["accuracy"]})


def test_each_draw_of_a_tuned_trial_has_a_log(tmp_path):
    assert run(tmp_path, "--log=tensorboard", "--tune=2", "--protocols=accuracy").exit_code == 0
    draws = sorted(tmp_path.glob("logs/tensorboard/*/*/seed*"))
    assert len(draws) == 2
    for draw in draws:
        assert len(Events(draw).found.Scalars("training/loss")) == 5


@pytest.mark.slow
def test_processes_of_their_own_log_what_they_train(tmp_path):
    assert run(tmp_path, "--log=tensorboard", "--jobs=2", "--seeds=0,1").exit_code == 0
    for seed in (0, 1):
        (found,) = tmp_path.glob(f"logs/tensorboard/*/*/seed{seed}-*")
        check_curves(Events(found).curves(), [record for record in records(tmp_path) if record.seed == seed])


# -- what goes wrong -------------------------------------------------------------------------------------------------


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *((where, FULL) for where in ("__init__", "configuration", "picture", "scalars", "close")),
        ("scalars", SystemExit(3)),
        ("scalars", ValueError("a\nb")),
    ],
)
def test_a_logger_that_fails_ends_the_log_alone_and_says_so_in_one_line(where, error, tmp_path, monkeypatch):
    def failing(self: Any, *args: Any, **more: Any) -> None:
        if where == "close":
            self._file.close()
        raise error

    monkeypatch.setattr(loggers.TensorBoardLogger, where, failing)
    result = run(tmp_path, "--log=tensorboard")
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "nothing more is logged" in line]
    assert line.startswith("omni5w1s protonets metabn seed 0: tensorboard fails, so nothing more is logged: ")
    assert str(error).splitlines()[-1] in line
    assert [record.protocol for record in records(tmp_path)] == ["accuracy", "nll"]


def test_a_full_disk_ends_the_log_alone(tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    opened = Path.open

    def open_full(path: Path, *how: Any, **more: Any) -> Any:
        return opened(Path("/dev/full"), "wb") if "tfevents" in path.name else opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", open_full)
    result = run(tmp_path, "--log=tensorboard")
    assert result.exit_code == 0
    assert result.output.count("nothing more is logged: OSError: [Errno 28] No space left on device") == 1
    assert len(records(tmp_path)) == 2


def test_a_training_that_fails_closes_its_log(tmp_path):
    failed = run(tmp_path, "--log=tensorboard", learning_rate=1e30)
    assert failed.exit_code == 1
    assert "nothing more is logged" not in failed.output
    assert place(tmp_path).is_dir()


@pytest.mark.parametrize("library", ["tensorboard", "wandb", "mlflow"])
def test_a_library_that_is_not_there_is_one_message_before_anything_is_done(library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    result = run(tmp_path / "runs", "--log", library)
    assert result.exit_code == 2
    assert f"--log {library} needs the library {library}" in result.output
    assert f"pip install 'mlpip_bench[{library}]'" in result.output
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match=rf"mlpip_bench\[{library}\]"):
        fit(tmp_path / "runs", log=library)


def test_an_unknown_library_is_refused_with_those_there_are(tmp_path):
    result = run(tmp_path, "--log=tensorbord")
    assert result.exit_code == 2
    assert "unknown log 'tensorbord'. Did you mean 'tensorboard'? Known: mlflow, tensorboard, wandb." in result.output


# -- libraries that are seldom installed ------------------------------------------------------------------------------


def run_without_a_network(library: str, results: Path) -> list[Record]:
    """A run in a process of its own, since these libraries leave a process changed; proxies lead nowhere."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("WANDB_", "MLFLOW_"))} | nowhere
    command = ["-m", "mlpip_bench", "run", *TYPED, *budget(iterations=5, **SMALL), "--results", results]
    done = subprocess.run(
        [sys.executable, *map(str, command), "--log", library],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing more is logged" not in done.stderr
    return records(results)


@pytest.mark.filterwarnings("default")  # of what MLflow itself is made of
def test_mlflow_has_what_the_records_say(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    made = run_without_a_network("mlflow", tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/logs/mlflow/mlflow.db")
    run_id = place(tmp_path, "mlflow").read_text()
    found = client.get_run(run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "omni5w1s protonets metabn seed 0"
    assert (found.data.params["bench"], found.data.params["settings.scale"]) == ("omni5w1s", "1.0")
    histories = {name: client.get_metric_history(run_id, name) for name in found.data.metrics}
    curves = {name: {metric.step: metric.value for metric in history} for name, history in histories.items()}
    assert all(len(curves[name]) == len(history) for name, history in histories.items())
    check_curves(curves, made)
    assert [file.path for file in client.list_artifacts(run_id, "tasks")] == ["tasks/train.png", "tasks/validation.png"]


def test_weights_and_biases_has_what_the_records_say(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record as Entry

    made = run_without_a_network("wandb", tmp_path)
    (file,) = tmp_path.glob("logs/wandb/offline-run-*/run-*.wandb")
    assert file.stem == f"run-{place(tmp_path, 'wandb').read_text()}"
    curves: dict[str, Curve] = defaultdict(dict)
    configuration, rows = {}, []
    for content in entries(file.read_bytes()):
        entry = Entry.FromString(content)
        configuration |= {item.key or item.nested_key[0]: item.value_json for item in entry.config.update}
        if entry.HasField("history"):
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in entry.history.item})
    for row in rows:
        for name, value in row.items():
            if not name.startswith(("_", "tasks/")):
                assert row["_step"] not in curves[name]
                curves[name][row["_step"]] = value
    check_curves(curves, made)
    assert configuration["bench"] == '"omni5w1s"'
    assert {name for row in rows for name in row if name.startswith("tasks/")} == {"tasks/train", "tasks/validation"}
    assert len(list(tmp_path.glob("logs/wandb/offline-run-*/files/media/images/tasks/*.png"))) == 2


def entries(content: bytes) -> list[bytes]:
    """Entries of a file of Weights & Biases: after 7 bytes, a log of LevelDB in blocks of 32 KiB."""
    found, place = [b""], 7
    while place < len(content):
        if (left := -place % 32768) and left < 7:
            place += left
        _, length, kind = struct.unpack_from("<IHB", content, place)
        found[-1] += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(b"")
    return found[:-1]
