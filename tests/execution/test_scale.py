"""What it costs to hand out trials grows no faster than their number."""

import pytest

from builders import seconds_of_empty_jobs
from mlpip_bench.execution import scheduler
from mlpip_bench.execution.executors.base import Executor, Outcome
from mlpip_bench.utils.progress import Quiet


class Looked(Executor):
    """Does nothing, in the order of starting; counts how often the scheduler looks whether a lock is held."""

    slots = 2

    def __init__(self):
        self.under_way, self.looks = [], 0

    def start(self, job):
        self.under_way.append(job)

    def wait(self):
        return self.under_way.pop(0), Outcome("done")

    def close(self):
        assert not self.under_way


def test_each_waiting_trial_is_looked_at_once(monkeypatch):
    class Job:
        lock = None
        keys = ()

    executor = Looked()

    def is_held(_):
        executor.looks += 1
        return False

    monkeypatch.setattr(scheduler, "is_held", is_held)
    ended = list(scheduler._until_ended(executor, [Job() for _ in range(1000)], Quiet(), wait=True))
    assert (len(ended), executor.looks) == (1000, 1000)


def test_twice_as_many_trials_take_no_more_than_three_times_as_long():
    few, many = (seconds_of_empty_jobs("local", number) for number in (1000, 2000))
    assert many < 3 * few


@pytest.mark.slow
def test_ten_thousand_trials_take_no_longer_each_than_five_hundred():
    few, many = (seconds_of_empty_jobs("local", number) / number for number in (500, 10_000))
    assert many < 2 * few
