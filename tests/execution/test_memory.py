"""What a batch will take, against what it takes."""

import pytest
import torch

from builders import invoke, make_config
from mlpip_bench.execution import memory, planning
from mlpip_bench.execution.trial import Trial
from mlpip_bench.utils.timers import peak_bytes

ARGUMENTS = ["run", "--methods", "protonets", "--source", "procedural", "--dry-run"]


def planned(bench: str) -> Trial:
    (trial,) = planning.plan_trials(make_config(benches=(bench,)))
    return trial


@pytest.mark.parametrize("bench", ["omni20w5s", "mini5w1s"])
def test_what_is_kept_of_an_image_is_most_of_what_a_step_takes(bench):
    trial = planned(bench)
    method, batch = trial.build_method(), trial.streams()["train"].batch(0, 1)
    images = batch.support.x[0].shape[0] + batch.query.x[0].shape[0]
    measured = peak_bytes(lambda: method.loss(batch).backward(), torch.device("cpu"))
    assert 0.4 * measured < images * memory.bytes_of_an_image(trial) < 1.1 * measured


def test_a_batch_beyond_the_memory_is_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_memory", lambda _device: 10**9)
    result = invoke(*ARGUMENTS, "--bench", "omni500w1s", "--set", "train_queries=15", "--results", tmp_path)
    assert result.exit_code == 2
    assert "a batch must fit the memory" in result.output
    assert "there are 1 GB. Use fewer ways" in result.output


def test_an_ordinary_batch_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory, "bytes_of_an_image", lambda _trial: pytest.fail("measured"))
    planned("omni20w5s")
    planned("mini5w5s")


def test_the_memory_of_this_machine_is_known():
    assert 2**28 < memory._memory(torch.device("cpu")) < 2**50
