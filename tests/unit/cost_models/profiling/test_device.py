"""The timers, on fake CUDA events, and the error without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cost_models import CostModelError
from cost_models.profiling.device import CudaTimer, Device, GroupTimer, open_device

MIB = 2**20


class Stream:
    """A GPU that runs queued calls in order; the clock of the host advances with each call. Times in ms."""

    def __init__(self, l2_bytes: int = 50 * MIB) -> None:
        self.gpu_ms = 0.0
        self.host_ms = 0.0
        self.flushed = 0
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: Event(self),
            get_device_properties=lambda place: SimpleNamespace(L2_cache_size=l2_bytes),
        )
        self.float32 = "float32"

    def empty(self, numbers: int, *, dtype: str, device: str) -> Any:
        self.buffer_bytes = 4 * numbers
        return SimpleNamespace(zero_=lambda: self.queue(0.2, flush=True), max=lambda: self.queue(0.2))

    def queue(self, ms: float, launch_ms: float = 0.01, flush: bool = False) -> None:
        self.host_ms += launch_ms
        self.gpu_ms = max(self.gpu_ms, self.host_ms) + ms
        self.flushed += flush


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def record(self) -> None:
        self.stream.queue(0.0, launch_ms=0.001)
        self.at = self.stream.gpu_ms

    def query(self) -> bool:
        return self.stream.host_ms >= self.at

    def synchronize(self) -> None:
        self.stream.host_ms = max(self.stream.host_ms, self.at)

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def timer_on(stream: Stream) -> CudaTimer:
    return CudaTimer(Device(stream, "cuda:0", "Card", (9, 0)))


def test_a_call_behind_a_flush_is_timed_on_the_gpu_alone() -> None:
    stream = Stream()
    timer = timer_on(stream)
    timer.flush()
    sample = timer.time(lambda: stream.queue(0.025, launch_ms=0.1))
    assert sample.us == pytest.approx(25)
    assert not sample.late
    assert stream.flushed == 1


def test_a_call_that_the_gpu_waits_for_is_late() -> None:
    stream = Stream()
    timer = timer_on(stream)
    assert timer.time(lambda: stream.queue(0.025, launch_ms=0.1)).late
    timer.flush()
    assert timer.time(lambda: stream.queue(0.025, launch_ms=1.0)).late


@pytest.mark.parametrize("l2_mib", [6, 50, 400])
def test_the_buffer_is_larger_than_twice_the_cache(l2_mib: int) -> None:
    stream = Stream(l2_mib * MIB)
    timer_on(stream)
    assert stream.buffer_bytes > max(2 * l2_mib * MIB, 512 * MIB)


class Group:
    """PyTorch in a group of processes; the others have `others` in each all-reduce."""

    float32, float64 = "float32", "float64"

    def __init__(self, others: list[float]) -> None:
        self.reductions = 0
        self._others = others
        self.distributed = SimpleNamespace(all_reduce=self._all_reduce, ReduceOp=SimpleNamespace(MAX="max"))

    def tensor(self, values: tuple[float, ...], *, dtype: str, device: str) -> Any:
        tensor = SimpleNamespace(values=list(values))
        tensor.tolist = lambda: tensor.values
        return tensor

    def ones(self, size: tuple[int, ...], *, dtype: str, device: str) -> Any:
        return SimpleNamespace(values=[1.0])

    def _all_reduce(self, tensor: Any, op: str = "sum") -> None:
        self.reductions += 1
        if op == "max":
            tensor.values = [max(pair) for pair in zip(tensor.values, self._others, strict=False)]


def test_processes_agree_on_the_slowest() -> None:
    stream = Stream()
    group = Group([40.0, 0.0])
    timer = GroupTimer(Device(group, "cuda:0", "Card", (9, 0), world=2), timer_on(stream))
    timer.flush()
    sample = timer.time(lambda: stream.queue(0.025))
    assert sample.us == 40.0
    assert sample.late is False
    assert group.reductions == 2
    late = GroupTimer(Device(Group([1.0, 1.0]), "cuda:0", "Card", (9, 0), world=2), timer_on(stream))
    late.flush()
    assert late.time(lambda: stream.queue(0.025)).late is True
    clock = GroupTimer(Device(Group([1e12]), "cuda:0", "Card", (9, 0), world=2), timer_on(stream))
    assert clock.now() == 1e12


def test_no_pytorch_and_no_gpu_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CostModelError, match=r"install it from pytorch\.org on the machine with the GPU"):
        open_device()
    torch = ModuleType("torch")
    torch.__dict__["cuda"] = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(CostModelError, match="PyTorch finds no CUDA GPU; run this on the machine whose GPU"):
        open_device()
