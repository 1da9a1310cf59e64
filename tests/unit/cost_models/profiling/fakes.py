"""A fake GPU: kernels with given times, and a timer whose clock they advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cost_models.profiling.campaign import Factory, Kernel
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import Sample


class VirtualGpu:
    """Satisfies Timer. Its kernels take `latency_us` of the shape, their data `data_s`, a flush `flush_s`."""

    def __init__(
        self,
        latency_us: Callable[[Shape], float],
        data_s: Callable[[Shape], float] = lambda _: 0.0,
        flush_s: float = 0.0,
    ) -> None:
        self.seconds = 1000.0
        self.flushes = 0
        self.prepared: list[Shape] = []
        self._latency_us = latency_us
        self._data_s = data_s
        self._flush_s = flush_s

    def now(self) -> float:
        return self.seconds

    def flush(self) -> None:
        self.flushes += 1
        self.seconds += self._flush_s

    def time(self, call: Callable[[], object]) -> Sample:
        before = self.seconds
        call()
        return Sample((self.seconds - before) * 1e6, late=False)

    def prepare(self, shape: Shape) -> Kernel:
        """Return the kernel of a shape."""
        self.prepared.append(shape)
        self.seconds += self._data_s(shape)
        return Kernel(lambda: self._work(shape), "virtual")

    def factories(self, *operators: str) -> Mapping[str, Factory]:
        """Return the kernels of the given operators."""
        return dict.fromkeys(operators, self.prepare)

    def _work(self, shape: Shape) -> None:
        self.seconds += self._latency_us(shape) * 1e-6
