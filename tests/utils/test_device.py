"""Devices: what the user may name, what is said of one that is not there, and what a record says of one that is."""

import pytest
import torch

from mlpip_bench.inference.distributions import where_float64_is
from mlpip_bench.utils.device import environment, most_resident_bytes, resolve_device
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.timers import Stopwatch, peak_bytes

MPS = torch.device("mps")


@pytest.fixture
def with_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M9")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mps", r"--device mps needs the GPU of a Mac .* sees none here\. Use --device cpu\."),
        ("cuda:1", r"--device cuda:1 needs a CUDA GPU; .* sees 0 here\. Use --device cpu"),
        ("tpu", r"must be auto, cpu, mps, cuda or cuda:N; got 'tpu'"),
        ("meta", r"must be auto, cpu, mps, cuda or cuda:N; got 'meta'"),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_device(name)


@pytest.mark.usefixtures("without_gpu")
def test_another_machine_may_have_it() -> None:
    assert resolve_device("mps", here=False) == MPS
    assert resolve_device("cuda:1", here=False) == torch.device("cuda:1")


@pytest.mark.usefixtures("without_gpu", "with_mps")
def test_mps_is_taken_where_it_is_named_and_not_by_itself() -> None:
    assert resolve_device("mps") == MPS
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("with_mps")
def test_a_record_names_the_gpu_of_mps_and_nothing_of_cuda() -> None:
    said = environment(MPS)
    assert said["gpu"] == "Apple M9"
    assert {said[name] for name in ("driver", "cudnn", "cudnn_benchmark", "tf32", "tf32_convolutions")} == {None}
    assert environment(torch.device("cpu"))["gpu"] is None


@pytest.mark.parametrize("numerics", [Numerics(precision="tf32"), Numerics(compile="reduce-overhead")])
def test_what_takes_cuda_is_refused_on_mps(numerics: Numerics) -> None:
    with pytest.raises(UserError, match="matter of CUDA GPUs; the device of this run is mps"):
        numerics.check(MPS)


@pytest.mark.parametrize("numerics", [Numerics(), Numerics(precision="bf16"), Numerics(compile="default")])
def test_what_any_device_can_do_is_not(numerics: Numerics) -> None:
    numerics.check(MPS)


class OnMps:
    """What is asked of a tensor on MPS, on machines that have none."""

    device = MPS

    def cpu(self) -> torch.Tensor:
        return torch.ones(2)


def test_a_tensor_of_mps_goes_to_the_cpu_for_float64_and_others_stay() -> None:
    here = torch.zeros(2)
    assert where_float64_is(here) is here
    assert where_float64_is(OnMps()).double().tolist() == [1.0, 1.0]  # type: ignore[arg-type]


def test_clock_and_memory_of_mps_wait_for_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    taken = iter([100, 350])
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: next(taken))
    assert peak_bytes(lambda: calls.append("work"), MPS) == 250
    assert calls == ["synchronize", "empty", "work", "synchronize"]

    calls.clear()
    watch = Stopwatch(MPS)
    watch.mark()
    watch.mark()
    assert calls == ["synchronize"] * 2
    assert len(watch.laps()) == 1


def test_the_most_memory_is_no_less_than_what_was_just_filled() -> None:
    before = most_resident_bytes()
    block = torch.ones(50_000_000, dtype=torch.uint8)
    assert most_resident_bytes() >= max(before, block.numel())
