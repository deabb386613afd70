"""What a batch will take, against what it takes."""

import subprocess
import sys

import pytest

from builders import CPU, invoke, make_config
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
    measured = peak_bytes(lambda: made.loss(batch).backward(), CPU)
    assert 0.7 * measured < memory.bytes_of_a_step(trial) < 1.4 * measured


BATCH = ["--bench", "omni500w1s", "--set", "train_queries=15"]


def test_a_batch_beyond_the_memory_is_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_memory", lambda _device: memory._Memory(24 * 10**9, 10**9))
    result = invoke(*ARGUMENTS, *BATCH, "--results", tmp_path, COLUMNS="1000")
    assert result.exit_code == 2
    assert "a training step must fit the memory" in result.output
    assert "and of the 24 GB of this machine 1.0 GB are available. Use fewer ways" in result.output


def test_processes_at_once_share_it(monkeypatch, tmp_path):
    needed = int(1.5 * memory.bytes_of_a_step(planned("omni500w1s", train_queries=15)))
    monkeypatch.setattr(memory, "_memory", lambda _device: memory._Memory(10 * needed, int(2.5 * needed)))
    given = [*ARGUMENTS, *BATCH, "--results", tmp_path, "--seeds"]
    assert invoke(*given, "0,1,2", "--jobs", "2").exit_code == 0
    assert invoke(*given, "0", "--jobs", "3").exit_code == 0  # one trial, and nothing next to it
    result = invoke(*given, "0,1,2", "--jobs", "3", COLUMNS="1000")
    assert result.exit_code == 2
    assert f"3 at once take {3 * needed / 1e9:.0f} GB" in result.output
    assert "Use fewer --jobs" in result.output


def test_an_ordinary_batch_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory, "bytes_of_a_step", lambda _trial: pytest.fail("measured"))
    planned("omni20w5s")
    planned("mini5w5s")


def test_the_memory_of_this_machine_is_known():
    there = memory._memory(CPU)
    assert 2**28 < there.available <= there.total < 2**50


def test_what_is_available_is_what_the_system_says(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:  700 kB\nHugePages_Total:  0\n")
    assert memory._of_machine(meminfo).available == 700 * 1024
    unknown = memory._of_machine(tmp_path / "nowhere")
    assert unknown.available == unknown.total > 2**28


@pytest.mark.parametrize(
    ("own", "group", "limit", "used", "stat"),
    [
        ("0::/user/job\n", "user", "memory.max", "memory.current", "anon 60\nactive_file 20\ninactive_file 10\n"),
        (
            "4:cpu,memory:/job\n1:cpu:/other\n", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes",
            "active_file 1\ntotal_active_file 20\ntotal_inactive_file 10\n",
        ),
    ],
)  # fmt: skip
def test_a_control_group_has_its_limit_less_what_is_used_and_no_cache(
    own, group, limit, used, stat, tmp_path, monkeypatch
):
    mounted, named = tmp_path / "cgroup", tmp_path / "own"
    (mounted / "user" / "job").mkdir(parents=True)
    (mounted / group).mkdir(parents=True, exist_ok=True)
    named.write_text(own)
    groups = memory._control_groups(mounted, named)
    assert mounted / group in [folder for folder, _ in groups]
    assert all(folder.is_relative_to(mounted) for folder, _ in groups)
    monkeypatch.setattr(memory, "_control_groups", lambda *_: groups)
    (mounted / group / limit).write_text("max\n")
    assert memory._memory(CPU).total > 2**28
    (mounted / group / limit).write_text("1000\n")
    assert memory._memory(CPU) == memory._Memory(1000, 1000)
    (mounted / group / used).write_text("90\n")
    (mounted / group / "memory.stat").write_text(stat)
    assert memory._memory(CPU) == memory._Memory(1000, 1000 - 90 + 30)
    monkeypatch.undo()
    assert memory._control_groups(mounted, tmp_path / "nowhere") == []


def test_what_this_process_has_freed_is_available():
    code = (
        "import torch, mlpip_bench.execution.memory as m; from mlpip_bench.utils.device import keep_freed_memory\n"
        "keep_freed_memory(); x = [torch.ones(2**20) for _ in range(100)]; del x\n"  # 400 MB
        "resident = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before = resident(); m._memory(torch.device('cpu')); print(before - resident())"
    )
    freed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(freed) > 300 * 2**20
