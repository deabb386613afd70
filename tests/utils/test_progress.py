"""Progress: several stages at once, and stages of another process."""

import contextlib
import io

import pytest
from rich.console import Console

from mlpip_bench.utils.progress import ConsoleReporter, Receiver, Relay


class Recorder:
    """Notes what it receives."""

    def __init__(self) -> None:
        self.received_calls: list[tuple[object, ...]] = []

    def say(self, message: str) -> None:
        self.received_calls.append(("say", message))

    @contextlib.contextmanager
    def stage(self, title: str, total: int, start: int = 0):
        self.received_calls.append(("begin", title, total, start))
        yield lambda completed, note="": self.received_calls.append(("step", title, completed, note))
        self.received_calls.append(("end", title))


def work(reporter) -> None:
    reporter.say("hello")
    with reporter.stage("outer", 2) as outer, reporter.stage("inner", 3, start=1) as inner:
        inner(2, "a note")
        inner(3)
        outer(2)


def test_a_relayed_stage_is_the_stage_itself(monkeypatch):
    direct, received = Recorder(), Recorder()
    work(direct)
    receiver = Receiver(received)
    monkeypatch.setattr("mlpip_bench.utils.progress._RELAY_SECONDS", 0)
    work(Relay(receiver.receive))
    assert received.received_calls == direct.received_calls


def test_steps_are_relayed_now_and_then_and_the_last_one_always():
    sent: list[tuple[object, ...]] = []
    with Relay(sent.append).stage("many", 10_000) as step:
        for i in range(10_000):
            step(i + 1)
    steps = [event for event in sent if event[0] == "step"]
    assert len(steps) < 100
    assert steps[-1][2] == 10_000


def test_stages_of_a_process_that_is_no_more_are_ended():
    recorder = Recorder()
    receiver = Receiver(recorder)
    stage = Relay(receiver.receive).stage("left open", 5)
    stage.__enter__()
    receiver.close()
    assert recorder.received_calls == [("begin", "left open", 5, 0), ("end", "left open")]


def test_what_is_no_event_is_a_fault():
    with pytest.raises(ValueError, match="no such event"):
        Receiver(Recorder()).receive(("dance", 1))


def test_stages_at_once_have_a_bar_each_on_a_terminal():
    screen = io.StringIO()
    reporter = ConsoleReporter(Console(file=screen, force_terminal=True, width=120))
    with reporter.stage("outer", 4) as outer:
        outer(1)
        with reporter.stage("inner", 8) as inner:
            inner(6)
            reporter.say("between")
        outer(2)
    shown = screen.getvalue()
    for text in ("outer", "1/4", "inner", "between", "2/4"):
        assert text in shown


def test_elsewhere_the_end_of_a_stage_is_a_line():
    screen = io.StringIO()
    with ConsoleReporter(Console(file=screen)).stage("all", 4) as step:
        for i in range(4):
            step(i + 1)
    (line,) = screen.getvalue().splitlines()
    assert line.startswith("all  4/4")
