"""Matrix products as in linear layers: [m, k] times the transpose of a weight [n, k]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.profiling.campaign import Kernel
from cost_models.profiling.device import Device
from cost_models.profiling.grid import Shape


def gemm(device: Device, shape: Shape) -> Kernel:
    """Prepare the product of `shape`, in its `dtype`. Raises KernelError for FP8 if the GPU does not support it."""
    dtype = shape.text("dtype")
    if dtype == "fp8":
        device.need_fp8()
    m, n, k = shape.number("m"), shape.number("n"), shape.number("k")
    activations, weight = device.random(m, k, dtype=dtype), device.random(n, k, dtype=dtype)
    return _PRODUCTS[dtype](device, activations, weight)


def _bf16(device: Device, activations: Any, weight: Any) -> Kernel:
    linear = device.torch.nn.functional.linear
    return Kernel(lambda: linear(activations, weight), _source(device, "linear"))


def _fp8(device: Device, activations: Any, weight: Any) -> Kernel:
    """Prepare a product in FP8: one FP32 scale per tensor, result in BF16, accumulation in the tensor cores as for
    inference.

    The second operand must be column-major, which the transpose of a row-major weight is.
    """
    torch, transposed, one = device.torch, weight.t(), device.ones(1)

    def call() -> object:
        return torch._scaled_mm(
            activations, transposed, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return Kernel(call, _source(device, "_scaled_mm, per tensor, fast accumulation"))


def _int8(device: Device, activations: Any, weight: Any) -> Kernel:
    """Prepare a product in INT8 with an INT32 result. PyTorch needs more than 16 rows, and other sizes in multiples of
    8."""
    product, transposed = device.torch._int_mm, weight.t()
    return Kernel(lambda: product(activations, transposed), _source(device, "_int_mm"))


_PRODUCTS: dict[str, Callable[[Device, Any, Any], Kernel]] = {"bf16": _bf16, "fp8": _fp8, "int8": _int8}


def _source(device: Device, function: str) -> str:
    return f"torch {device.torch.__version__} {function}"
