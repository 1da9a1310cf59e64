"""As much of PyTorch as preparing kernels takes: tensors that have a shape and a format but no numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any


@dataclass
class Tensor:
    """`row_major` is False for a transposed view."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    row_major: bool = True
    calls: list[Any] = field(default_factory=list)

    def copy_(self, source: Tensor, *, non_blocking: bool) -> None:
        self.calls.append(("copy_", (self, source), {"non_blocking": non_blocking}))

    def topk(self, count: int, dim: int) -> tuple[Tensor, Tensor]:
        assert dim == -1
        best = replace(self, shape=(*self.shape[:-1], count))
        return best, replace(best, dtype="int64")

    def sum(self, dim: int, keepdim: bool) -> Tensor:
        assert (dim, keepdim) == (-1, True)
        return replace(self, shape=(*self.shape[:-1], 1))

    def __truediv__(self, other: Tensor) -> Tensor:
        assert other.shape[:-1] == self.shape[:-1]
        return self

    def to(self, dtype: str) -> Tensor:
        return replace(self, dtype=dtype)

    def t(self) -> Tensor:
        rows, columns = self.shape
        return replace(self, shape=(columns, rows), row_major=not self.row_major)

    def view(self, *shape: int) -> Tensor:
        assert math.prod(shape) == math.prod(self.shape)
        return replace(self, shape=shape)


class FakeTorch:
    """`calls` has the function and arguments of every kernel that was called, in order."""

    __version__ = "9.9"
    bfloat16, float8_e4m3fn, int8, int32, float32, float64 = "bf16", "fp8", "int8", "int32", "float32", "float64"

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        functional = SimpleNamespace(
            linear=self.kernel("linear"),
            embedding=self.kernel("embedding"),
            scaled_dot_product_attention=self.kernel("scaled_dot_product_attention"),
        )
        self.nn = SimpleNamespace(functional=functional)
        self.distributed = SimpleNamespace(all_reduce=self.kernel("all_reduce"))
        self.cuda = SimpleNamespace(
            nccl=SimpleNamespace(version=lambda: (2, 27, 3)), can_device_access_peer=lambda one, other: one != other
        )
        self.math_sdp = True
        self.backends = SimpleNamespace(cuda=SimpleNamespace(enable_math_sdp=self._enable_math_sdp))
        self._scaled_mm = self.kernel("_scaled_mm")
        self._int_mm = self.kernel("_int_mm")

    def kernel(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            self.calls.append((name, arguments, options))

        return call

    def randn(self, size: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
        return Tensor(size, dtype, device)

    def rand(self, *size: int, device: str) -> Tensor:
        return Tensor(size, "float32", device)

    def empty_like(self, tensor: Tensor, *, device: str) -> Tensor:
        return replace(tensor, device=device, calls=self.calls)

    def randint(self, low: int, high: int, size: tuple[int, ...], *, dtype: str = "int64", device: str) -> Tensor:
        assert low < high
        return Tensor(size, dtype, device)

    def ones(self, size: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
        return Tensor(size, dtype, device)

    def full(self, size: tuple[int, ...], value: int, *, dtype: str, device: str) -> Tensor:
        return Tensor(size, dtype, device)

    def arange(self, start: int, end: int, step: int, *, dtype: str, device: str) -> Tensor:
        return Tensor((len(range(start, end, step)),), dtype, device)

    def randperm(self, count: int, *, device: str) -> Tensor:
        return Tensor((count,), "int64", device)

    def compile(self, function: Any, *, dynamic: bool, fullgraph: bool) -> Any:
        return self.kernel(f"compiled {function.__name__}")

    def _enable_math_sdp(self, enabled: bool) -> None:
        self.math_sdp = enabled
