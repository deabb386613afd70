"""What a batch will take, against what it takes."""

import pytest
import torch

from builders import invoke, make_config
from mlpip_bench.execution import memory, planning
from mlpip_bench.execution.trial import Trial
from mlpip_bench.utils.timers import peak_bytes

ARGUMENTS = ["run", "--methods", "protonets", "--source", "procedural", "--dry-run"]


def planned(bench: str, method: str = "protonets", **overrides: object) -> Trial:
    (trial,) = planning.plan_trials(make_config(benches=(bench,), methods=(method,), overrides={"*": overrides}))
    return trial


@pytest.mark.parametrize(
    ("bench", "method"),
    [("mini5w1s", "protonets"), *(("omni20w5s", name) for name in ("protonets", "versa", "maml", "amortized_vi"))],
)
def test_what_a_step_takes_is_known_from_a_few_images(bench, method):
    trial = planned(bench, method, tasks_per_batch=1)
    made, batch = trial.build_method().train(), trial.streams()["train"].batch(0, 1)
    measured = peak_bytes(lambda: made.loss(batch).backward(), torch.device("cpu"))
    assert 0.7 * measured < memory.bytes_of_a_step(trial) < 1.4 * measured


def test_a_batch_beyond_the_memory_is_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_memory", lambda _device: 10**9)
    result = invoke(*ARGUMENTS, "--bench", "omni500w1s", "--set", "train_queries=15", "--results", tmp_path)
    assert result.exit_code == 2
    assert "a training step must fit the memory" in result.output
    assert "there are 1 GB. Use fewer ways" in result.output


def test_an_ordinary_batch_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory, "bytes_of_a_step", lambda _trial: pytest.fail("measured"))
    planned("omni20w5s")
    planned("mini5w5s")


def test_the_memory_of_this_machine_is_known():
    assert 2**28 < memory._memory(torch.device("cpu")) < 2**50


def test_limits_of_a_control_group_and_of_those_above_it_count(tmp_path, monkeypatch):
    own, mounted = tmp_path / "own", tmp_path / "cgroup"
    (mounted / "user" / "job").mkdir(parents=True)
    (mounted / "memory" / "job").mkdir(parents=True)
    for text, file in (
        ("0::/user/job\n", "user/memory.max"),
        ("4:cpu,memory:/job\n1:cpu:/other\n", "memory/job/memory.limit_in_bytes"),
    ):
        own.write_text(text)
        (mounted / file).write_text("12345\n")
        assert mounted / file in memory._limits_of_cgroups(mounted, own)
        assert all(limit.is_relative_to(mounted) for limit in memory._limits_of_cgroups(mounted, own))
        monkeypatch.setattr(memory, "_limits_of_cgroups", lambda *_, limit=mounted / file: [limit])
        assert memory._memory(torch.device("cpu")) == 12345
        monkeypatch.undo()
    assert memory._limits_of_cgroups(mounted, tmp_path / "nowhere") == []
