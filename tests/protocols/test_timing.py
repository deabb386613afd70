"""The protocol timing, against methods whose work takes a known time, and the tables made of its records."""

import copy
import dataclasses
import json
import re
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from mlpip_bench.protocols import timing
from mlpip_bench.protocols.timing import Timing
from torch.distributions import Categorical

from builders import CPU, REPOSITORY, backbone, budget, invoke, make_pool, make_record, make_scores, write_record
from mlpip_bench import registry
from mlpip_bench.evaluation.protocol import Contender
from mlpip_bench.execution import measuring, planning
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem, TrainingPlan
from mlpip_bench.records import store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.table import to_markdown
from mlpip_bench.reporting.tables.timing import benchmark_tables, timing_tables
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.utils.device import environment
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.numerics import Numerics, backbone_autocast
from mlpip_bench.utils.progress import Quiet
from mlpip_bench.utils.timers import Stopwatch, peak_bytes

ADAPT, PREDICT = 4e-3, 2e-3


@dataclass(frozen=True)
class SleepySettings:
    test_steps: int = 2
    eval_samples: int = 10


class Sleepy(Method[Delta]):
    """Sleeps so long a step to adapt, and so long to predict, however many tasks there are."""

    reference, psi = "none 2026", "nothing"
    Settings = SleepySettings

    def __init__(self, asked: list[str], name: str) -> None:
        super().__init__(Problem(backbone("identity", (1, 2, 2)), "metabn", 2), SleepySettings())
        self.asked, self.name = asked, name
        self.weight = torch.nn.Parameter(torch.ones(()))

    def amortize(self, support):
        self.asked.append(self.name)
        time.sleep(ADAPT * self.settings.test_steps)
        return Posterior(Delta(torch.zeros(support.tasks, 1)))

    def predictive(self, q, query_x):
        time.sleep(PREDICT)
        return Categorical(logits=self.weight * torch.zeros(*query_x.shape[:2], 2))

    def loss(self, batch):
        time.sleep(ADAPT)
        return self.weight.square()


class Broken(Sleepy):
    def predictive(self, q, query_x):
        raise RuntimeError("out of order")


def contender(method: Method, title: str, tasks: int = 40) -> Contender:
    pool = make_pool(np.zeros((5, 20, 1, 2, 2), dtype=np.uint8))
    stream = TaskStream(pool, TaskShape(2, 1, 3), "d2w1s", "test", split="test")
    plan = TrainingPlan(1, 2, 3, 1e-3, test_tasks=tasks)
    return Contender(title, method, plan, {"train": stream, "test": stream}, lambda: copy.deepcopy(method))


@pytest.fixture(scope="module")
def measured() -> tuple[list[list[Scores]], list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "WARM_UP_SECONDS", 0.01)
        patch.setattr(timing, "VARIANTS", {"test_steps": (5,)})
        asked: list[str] = []
        methods = [Sleepy(asked, name) for name in "ab"]
        before = [m.settings for m in methods]
        scores = Timing().measure([contender(m, m.name) for m in methods], Quiet())
        assert [m.settings for m in methods] == before
        assert all(m.weight.item() == 1 for m in methods)  # a copy was trained
    return scores, asked


def the(scores: list[Scores], metric: str, **condition: object) -> Scores:
    (found,) = (s for s in scores if s.metric == metric and dict(s.condition) == condition)
    return found


def test_stages_take_the_time_that_they_sleep(measured):
    """A sleep is never shorter than asked for; the stages are distinguished by their ratio."""
    for scores in measured[0]:
        adapt = the(scores, "adapt_seconds", regime="latency").per_task
        predict = the(scores, "predict_seconds", regime="latency").per_task
        rate = the(scores, "tasks_per_second", regime="latency").per_task
        assert len(adapt) == len(predict) == len(rate) == timing.REPEATS
        assert min(adapt) >= 2 * ADAPT
        assert min(predict) >= PREDICT
        for a, p, r in zip(adapt, predict, rate, strict=True):
            assert r == pytest.approx(1 / (a + p))
        assert 2 < np.median(adapt) / np.median(predict) < 8  # 4, but for what a sleep takes longer than asked


def test_variants_change_the_setting_and_nothing_else(measured):
    for scores in measured[0]:
        five = the(scores, "adapt_seconds", regime="latency", steps=5)
        assert min(five.per_task) >= 5 * ADAPT
        assert five.detail["tasks"] == (2,)  # a fifth of the 8 tasks of a repeat, rounded up


def test_throughput_finds_the_batch_that_a_constant_cost_wants(measured):
    for scores in measured[0]:
        rate = the(scores, "tasks_per_second", regime="throughput")
        assert rate.detail["tasks_at_once"] == (32,)  # the most that 40 resident tasks allow
        assert np.median(rate.per_task) > 8 * np.median(the(scores, "tasks_per_second", regime="latency").per_task)
        drawn = the(scores, "tasks_per_second", regime="throughput", tasks="drawn too")
        assert max(*drawn.per_task, *rate.per_task) <= 32 / (2 * ADAPT + PREDICT)  # nobody sleeps less than asked


def test_training_is_timed_for_a_thousand_tasks(measured):
    for scores in measured[0]:
        train = the(scores, "train_seconds", regime="training")
        assert min(train.per_task) >= ADAPT / 2 * 1000  # two tasks a step
        assert train.detail["tasks"] == (8,)


def test_methods_take_turns_in_an_order_that_changes(measured):
    asked = measured[1]
    runs = [name for name, before in zip(asked, ["", *asked], strict=False) if name != before]
    assert len(runs) > 2 * timing.REPEATS  # not all of one, then all of the other
    half = len(asked) // 2
    assert {"a", "b"} <= set(asked[:half]) & set(asked[half:])


def test_a_method_that_fails_is_named():
    contenders = [contender(Sleepy([], "a"), "good"), contender(Broken([], "b"), "bad")]
    good, bad = Timing().measure(contenders, Quiet())
    assert isinstance(bad, TrialError)
    assert re.search("bad failed while it was timed: .*out of order", str(bad))
    assert {s.metric for s in good} == {"adapt_seconds", "predict_seconds", "tasks_per_second", "peak_memory_bytes",
                                        "train_seconds"}  # fmt: skip


def test_more_tasks_than_fit_are_met_again(monkeypatch):
    monkeypatch.setattr(timing, "RESIDENT_BYTES", 3 * (2 + 6) * (16 + 8))  # three tasks: images, and labels
    tasks = timing._Tasks(contender(Sleepy([], "a"), "a"))
    batches = list(tasks.batches(1, 7))
    assert tasks.most_at_once == 3
    assert [int(b.support.x.data_ptr() == batches[0].support.x.data_ptr()) for b in batches] == [1, 0, 0, 1, 0, 0, 1]


# --------------------------------------------------------------------------------------------------- stopwatch


def test_a_stopwatch_tells_laps():
    watch = Stopwatch(CPU)
    watch.mark()
    for seconds in (2e-3, 6e-3):
        time.sleep(seconds)
        watch.mark()
    first, second = watch.laps()
    assert first >= 2e-3
    assert second >= 6e-3


def test_peak_memory_is_that_of_the_tensors_alive_at_once():
    kept = torch.zeros(1000)  # alive before: not counted

    def work() -> torch.Tensor:
        a = torch.ones(1000)  # 4 kB
        b = torch.cat([a, kept])  # 12 kB
        del a
        return b * 2  # 16 kB

    assert 16_000 <= peak_bytes(work, CPU) < 17_000
    assert peak_bytes(lambda: [work() for _ in range(1)], CPU) < 17_000
    assert peak_bytes(lambda: None, CPU) == 0


# ---------------------------------------------------------------------------------------------------- numerics


def test_precision_changes_the_key_and_float32_does_not(tmp_path):
    config = RunConfig(methods=("versa",), benches=("toy5",), protocols=("posterior",), results=tmp_path)
    (plain,) = planning.plan_trials(config)
    (half,) = planning.plan_trials(dataclasses.replace(config, numerics=Numerics("bf16")))
    (compiled,) = planning.plan_trials(dataclasses.replace(config, numerics=Numerics(compile="default")))
    assert "precision" not in plain.config
    assert half.config["precision"] == "bf16"
    assert len({c.record_key("posterior") for c in (plain, half, compiled)}) == 3
    assert plain.training_key == compiled.training_key != half.training_key  # training is never compiled


def test_precision_is_applied_and_left_as_it_was():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    x = torch.randn(8, 8)
    with Numerics().applied():
        assert not torch.backends.cudnn.allow_tf32
        assert (x @ x).dtype == torch.float32
    with Numerics("bf16").applied():
        assert (x @ x).dtype == torch.float32
        with backbone_autocast(CPU):
            assert (x @ x).dtype == torch.bfloat16
    with backbone_autocast(CPU):
        assert (x @ x).dtype == torch.float32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize("numerics", [Numerics("tf32"), Numerics(compile="reduce-overhead"), Numerics(graph="on")])
def test_what_takes_a_gpu_is_refused_elsewhere(numerics):
    with pytest.raises(UserError, match="CUDA GPU"):
        numerics.check(CPU)


@pytest.mark.parametrize("numerics", [Numerics("float16"), Numerics(compile="yes"), Numerics(graph="yes")])  # type: ignore[arg-type]
def test_an_unknown_word_is_refused(numerics):
    with pytest.raises(UserError, match=r"float16|yes"):
        numerics.check(CPU)


# -------------------------------------------------------------------------------------------------------- runs

TINY = budget(iterations=2, test_tasks=5)


def run(folder, methods, *arguments):
    asked = ["--methods", methods, "--bench", "linear5s", "--protocols", "timing", "--results", folder]
    return invoke("run", *asked, *TINY, *arguments)


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_methods_that_are_compared_are_measured_in_one_session(tmp_path):
    assert run(tmp_path, "versa,exact_linear").exit_code == 0
    first = {r.method: r for r in store.load_all(tmp_path)}
    assert len({r.environment["session"] for r in first.values()}) == 1
    assert all(s.over == "repeats" for r in first.values() for s in r.scores)
    again = run(tmp_path, "versa,exact_linear")
    assert "2 had nothing to do" in again.output
    assert "× " in again.output  # noqa: RUF001  # the tables are shown all the same

    third = run(tmp_path, "versa,exact_linear,amortized_vi")  # which measures the others with it once more
    assert third.exit_code == 0, third.output
    records = {r.method: r for r in store.load_all(tmp_path)}
    assert len(records) == 3
    assert len({r.environment["session"] for r in records.values()}) == 1
    assert records["versa"].environment["session"] != first["versa"].environment["session"]
    assert records["versa"].key == first["versa"].key
    (tmp_path / "tables" / "timing.csv").read_text()


def sessions(folder) -> dict[str, str]:
    return {r.method: r.environment["session"] for r in store.load_all(folder)}


@pytest.mark.usefixtures("quick")
def test_what_was_timed_separately_is_timed_together_once_it_is_asked_for_together(tmp_path):
    for method in ("versa", "exact_linear"):
        assert run(tmp_path, method).exit_code == 0
    separate = sessions(tmp_path)
    assert separate["versa"] != separate["exact_linear"]
    assert run(tmp_path, "versa,exact_linear", "--overwrite", "never").exit_code == 0
    assert sessions(tmp_path) == separate  # never is never
    assert run(tmp_path, "versa,exact_linear").exit_code == 0
    together = sessions(tmp_path)
    assert together["versa"] == together["exact_linear"] not in separate.values()


@pytest.mark.usefixtures("quick")
def test_a_method_that_fails_again_and_again_has_no_other_timed_again(tmp_path):
    broken = ["--set", "amortized_vi.learning_rate=1e38"]
    assert run(tmp_path, "versa,amortized_vi", *broken, "--iterations", "5").exit_code == 1
    before = sessions(tmp_path)
    assert list(before) == ["versa"]
    for overwrite, status in (("failed", 1), ("never", 0)):
        again = run(tmp_path, "versa,amortized_vi", *broken, "--iterations", "5", "--overwrite", overwrite)
        assert again.exit_code == status
        assert sessions(tmp_path) == before


@pytest.mark.usefixtures("quick")
def test_the_environment_is_that_of_the_measurement(tmp_path, monkeypatch):
    """torch's own default is TF32 convolutions: a record must not say so of what was timed without."""
    assert torch.backends.cudnn.allow_tf32
    seen = []
    read = measuring.environment

    def noted(device):
        seen.append(torch.backends.cudnn.allow_tf32)
        return read(device)

    monkeypatch.setattr(measuring, "environment", noted)
    assert run(tmp_path, "versa", "--protocols", "nll,timing").exit_code == 0
    assert set(seen[1:]) == {False}  # the first is of training, which is over by then


@pytest.mark.usefixtures("quick")
def test_a_trial_that_fails_in_training_leaves_the_others_to_be_timed(tmp_path, monkeypatch):
    plugin = registry.method("amortized_vi")

    def fail(self, batch):
        raise RuntimeError("no loss today")

    monkeypatch.setattr(plugin, "loss", fail)
    result = run(tmp_path, "versa,amortized_vi")
    assert result.exit_code == 1
    assert "no loss today" in result.output
    assert [r.method for r in store.load_all(tmp_path)] == ["versa"]


@pytest.mark.usefixtures("quick")
def test_half_precision_and_other_protocols_in_one_run(tmp_path):
    result = invoke(
        "run", "--methods", "protonets", "--bench", "omni5w1s", "--source", "procedural", "--precision", "bf16",
        "--backbone", "conv4,channels=4", "--protocols", "timing,accuracy", "--results", tmp_path, *TINY,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert {r.protocol for r in store.load_all(tmp_path)} == {"timing", "accuracy"}
    assert "precision bf16" in result.output
    assert "(stand-in)" in invoke("table", "--timing", "--results", tmp_path).output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_test_tasks_give_the_scores_of_eager_ones(tmp_path):
    arguments = ["run", "--methods", "versa", "--bench", "linear5s", "--protocols", "nll", "--results", tmp_path, *TINY]
    assert invoke(*arguments).exit_code == 0
    assert invoke(*arguments, "--compile", "default").exit_code == 0
    eager, compiled = sorted(store.load_all(tmp_path), key=lambda r: "compile" in r.config)
    assert compiled.config["compile"] == "default"
    assert compiled.scores[0].per_task == pytest.approx(eager.scores[0].per_task, rel=1e-4)


# ------------------------------------------------------------------------------------------------------ tables


def record(method: str, rates: tuple[float, ...], session: int = 1, **changes: object) -> Record:
    measured = {
        "condition": {"regime": "latency"}, "detail": {"tasks_at_once": (1.0,), "tasks": (20.0,)}, "over": "repeats",
    }  # fmt: skip
    machine = {"session": str(session), "processor": "Abacus 3", "threads": 2, "gpu": None, "torch": "2"}
    return make_record(
        make_scores(rates, "tasks_per_second", unit="tasks per second", better="higher", **measured),
        make_scores((5e6,), "peak_memory_bytes", unit="bytes", better="lower", **measured),
        method=method, protocol="timing", key=f"{method}{session}", iterations=2, settings={"test_steps": 3},
        environment={**machine, **changes},
    )  # fmt: skip


def test_numbers_are_medians_and_ratios_are_taken_repeat_by_repeat():
    slow, fast = (10.0, 20.0, 40.0, 10.0, 10.0), (20.0, 60.0, 80.0, 50.0, 40.0)
    (table,) = timing_tables([record("tortoise", slow), record("hare", fast)])
    rows = {row.label: row for row in table.rows}
    assert rows["hare"].cells["tasks/s"].mean == 50
    lower, upper = np.quantile(fast, [0.25, 0.75])
    assert rows["hare"].cells["tasks/s"].text == f"50.0 [{lower:.1f}, {upper:.1f}]"
    assert rows["hare"].cells["× tortoise"].mean == np.median(np.divide(fast, slow))  # noqa: RUF001
    assert rows["tortoise"].cells["× tortoise"].mean == 1  # noqa: RUF001
    assert rows["hare"].cells["peak MB"].text == "5"
    assert "median over 5 repeats of 20 tasks" in table.notes[0].lower()


def test_there_is_no_ratio_across_sessions():
    records = [record("tortoise", (1.0, 1.0)), record("hare", (2.0, 2.0), session=2)]
    for against in (None, "tortoise"):
        first, second = timing_tables(records, against)
        assert [row.label for row in (*first.rows, *second.rows)] == ["tortoise", "hare"]
        assert "× tortoise" in first.rows[0].cells  # noqa: RUF001
        assert "× tortoise" not in second.rows[0].cells  # noqa: RUF001


def test_each_row_names_the_very_device():
    gpu = record("hare", (2.0, 2.0), gpu="Loom 9000")
    (table,) = timing_tables([record("tortoise", (1.0, 1.0)), gpu])
    assert {row.attributes["device"] for row in table.rows} == {"cpu: Abacus 3, threads 2", "cpu: Loom 9000"}


def test_timings_are_in_no_table_of_scores(tmp_path):
    store.save(record("hare", (2.0, 2.0)), tmp_path)
    printed = invoke("table", "--results", tmp_path, "--format", "csv").output
    assert "tasks_per_second" not in printed
    csv = invoke("table", "--timing", "--format", "csv", "--results", tmp_path).output
    assert "tasks_per_second,1,20,2,2.0,2.0,2.0,tasks per second" in csv


@pytest.mark.parametrize(
    ("old", "new"),
    [('"regime": "latency"', '"regime": "foo"'), ('"session": "1"', '"session": ""'), ("2.0,", "0.0,")],
)
def test_a_damaged_record_of_timings_is_one_message(tmp_path, old, new):
    path = store.save(record("hare", (2.0, 2.0)), tmp_path)
    text = json.dumps(json.loads(path.read_text()))
    assert old in text
    write_record(path, json.loads(text.replace(old, new)))
    result = invoke("table", "--timing", "--results", tmp_path)
    assert result.exit_code == 2
    assert "a record of timings must be whole; omni5w1s/hare/timing" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timing", "--paired"], "got both"),
        (["--timing", "--against", "nobody"], "hare"),
        (["--against", "hare"], "Add --paired or --timing"),
        (["--benchmark-json", "x.json"], "Add --timing"),
        (["--timing", "--benchmark-json", "/nowhere/x.json"], "cannot be read"),
        (["--timing", "--benchmark-json", __file__], "pytest-benchmark wrote"),
    ],
)
def test_bad_input_is_one_message(tmp_path, arguments, said):
    store.save(record("hare", (2.0, 2.0)), tmp_path)
    result = invoke("table", "--results", tmp_path, *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_without_timings_there_is_a_command_that_makes_some(tmp_path):
    accuracy = make_scores((0.5, 0.6))
    store.save(dataclasses.replace(record("hare", (1.0,)), scores=(accuracy,)), tmp_path)
    result = invoke("table", "--timing", "--results", tmp_path)
    assert result.exit_code == 2
    assert "--protocols timing" in result.output


def test_what_pytest_benchmark_wrote_is_a_table(tmp_path):
    stats = {"q1": 0.001, "median": 0.002, "q3": 0.004, "rounds": 7}
    old = {"ratio": 2.5, "bar": 2, "of": "old / new"}
    peer = {"ratio": 3.125, "bar": 2, "tuned": 1.25, "tuned_bar": 1.5, "of": "peer / new"}
    content = {
        "machine_info": {"cpu": {"brand_raw": "Abacus 3"}},
        "datetime": "2026-11-28T10:00:00",
        "benchmarks": [
            {"group": "g", "name": "test_a", "stats": stats, "extra_info": old},
            {"group": "g", "name": "test_p", "stats": stats, "extra_info": peer},
            {"group": None, "name": "test_b", "stats": stats, "extra_info": {}},
        ],
    }
    path = tmp_path / "b.json"

    def printed(*options: str) -> str:
        path.write_text(json.dumps(content))
        return invoke("table", "--timing", "--benchmark-json", path, *options).output

    as_markdown = printed("--format", "markdown")
    peers, table = benchmark_tables(path)
    rows = {row.label: row for row in table.rows}
    assert rows["test_b"].cells["ms"].text == "2 [1, 4]"
    assert rows["old / new"].cells["ratio"].mean == 2.5
    assert "| old / new | 2 [1, 4] | 2.5 | at least 2 |  |  |" in as_markdown
    assert "| peer / new | 2 [1, 4] | 3.12 | at least 2 | 1.25 | at least 1.5, missed |" in as_markdown
    assert [row.label for row in peers.rows] == ["peer / new"]
    assert "| peer / new | 3.12 | 1.25 |" in as_markdown
    del peer["ratio"], peer["bar"]
    assert "| peer / new | 1.25 |" in printed("--format", "markdown")  # a column without numbers is left out
    old |= {"bar": 1.05, "bar_is": "at most"}
    assert "at most 1.05, missed" in printed()
    old["ratio"] = float("nan")
    path.write_text(json.dumps(content))
    assert invoke("table", "--timing", "--benchmark-json", path).exit_code == 2
    assert invoke("table", "--timing", "--benchmark-json", path, "--bench", "toy5").exit_code == 2


def test_the_environment_says_what_a_timing_depends_on():
    facts = environment(CPU)
    assert facts["threads"] == torch.get_num_threads()
    assert facts["processor"]
    assert facts["gpu"] is None
    assert {"driver", "cudnn", "tf32", "tf32_convolutions", "omp_num_threads"} <= set(facts)


def test_the_readme_quotes_the_committed_benchmarks_and_timings():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = " ".join(readme.partition("## How fast it is")[2].partition("\n## ")[0].split())
    benchmarks = json.loads((REPOSITORY / "results" / "timing" / "benchmarks.json").read_text(encoding="utf-8"))
    ratios = {b["name"]: b["extra_info"]["ratio"] for b in benchmarks["benchmarks"] if "ratio" in b["extra_info"]}
    few, many = (ratios[f"test_versa_adapts_and_predicts_faster_than_maml[{case}]"] for case in ("1-5", "15-2"))
    for said in (
        f"A loader of PNG files takes {ratios['test_stream_beside[file by file-50-5]']:.0f} times as long",
        f"predicts 5 queries {few:.1f} times as fast",
        f"which cost both the same, {many:.1f} times",
    ):
        assert said in section
    peers, _ = benchmark_tables(REPOSITORY / "results" / "timing" / "benchmarks.json")
    rows = [line for line in to_markdown(peers).splitlines() if line.startswith("|")]
    assert "\n".join(rows) in readme
    records = store.load_all(REPOSITORY / "results" / "timing")
    paper = [r for r in records if r.bench == "mini5w5s" and r.config["queries"] == 5]
    rows = {row.label: row for row in timing_tables(paper, "maml")[0].rows}
    assert f"{rows['versa (stand-in)'].cells['× maml'].mean:.1f} times as fast as MAML" in section  # noqa: RUF001


def test_the_page_quotes_the_committed_tables():
    page = (REPOSITORY / "docs" / "timing.md").read_text(encoding="utf-8")
    tables = (REPOSITORY / "results" / "timing" / "tables" / "timing.md").read_text(encoding="utf-8").splitlines()
    quoted = [line for line in page.splitlines() if line.startswith("|") and "metabn" in line]
    assert len(quoted) == 7
    assert set(quoted) <= set(tables)
