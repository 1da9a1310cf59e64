"""The kernels by PyTorch's own functions, on a CPU. PyTorch is not among this project's dependencies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cost_models.profiling.campaign import Campaign
from cost_models.profiling.device import Device
from cost_models.profiling.grid import Shape
from cost_models.profiling.kernels import factories_on
from cost_models.profiling.kernels.elementwise import rms_norm, rotate, silu_and_multiply
from cost_models.profiling.timing import Sample

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")


class WallTimer:
    """Satisfies Timer where calls are done when they return."""

    def now(self) -> float:
        return time.monotonic()

    def flush(self) -> None:
        pass

    def time(self, call: Callable[[], object]) -> Sample:
        start = time.perf_counter()
        call()
        return Sample((time.perf_counter() - start) * 1e6, late=False)


@pytest.fixture
def cpu() -> Device:
    return Device(torch, "cpu", "CPU", (9, 0))


ATTENTION = {"kv_dtype": "bf16", "batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64}
SHAPES = [
    Shape("gemm", {"dtype": "bf16", "m": 32, "n": 64, "k": 96}, 0),
    Shape("gemm", {"dtype": "int8", "m": 32, "n": 64, "k": 96}, 0),
    Shape("gemm", {"dtype": "fp8", "m": 32, "n": 64, "k": 96}, 0),
    Shape("prefill_attention", {**ATTENTION, "window": 0, "tokens": 8, "context": 0}, 0),
    Shape("prefill_attention", {**ATTENTION, "window": 0, "tokens": 8, "context": 24}, 0),
    Shape("decode_attention", {**ATTENTION, "context": 33}, 0),
    Shape("elementwise", {"name": "embedding", "tokens": 3, "hidden": 64, "bytes": 768}, 0),
    Shape("elementwise", {"name": "sampling", "tokens": 3, "hidden": 1000, "bytes": 102_000}, 0),
]


def test_a_tiny_run(cpu: Device) -> None:
    campaign = Campaign("CPU", factories_on(cpu), WallTimer())
    grids = {shape.operator: [other for other in SHAPES if other.operator == shape.operator] for shape in SHAPES}
    campaign.run(grids, 600, lambda _: None)
    assert [outcome.failures for outcome in campaign.outcomes.values()] == [{}] * len(grids)
    assert len(campaign.rows) == len(SHAPES)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (SHAPES[0], (32, 64)),
        (SHAPES[1], (32, 64)),
        (SHAPES[2], (32, 64)),
        (SHAPES[3], (2, 8, 8, 64)),
        (SHAPES[4], (2, 8, 8, 64)),
        (SHAPES[5], (2, 8, 1, 64)),
        (SHAPES[6], (3, 64)),
        (SHAPES[7], (3,)),
    ],
    ids=str,
)
def test_results_have_their_shapes(cpu: Device, shape: Shape, size: tuple[int, ...]) -> None:
    result: Any = factories_on(cpu)[shape.operator](shape).call()
    assert tuple(result.shape) == size


def test_what_is_compiled_computes_what_models_do() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    normed, total = rms_norm(x, residual, weight)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + residual, (64,), weight, 1e-6))

    gated = torch.randn(3, 64)
    torch.testing.assert_close(silu_and_multiply(gated), torch.nn.functional.silu(gated[:, :32]) * gated[:, 32:])

    heads, angle = torch.randn(3, 2, 128), torch.randn(3, 1, 64)
    low, high = heads[..., :64], heads[..., 64:]
    expected = torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), dim=-1)
    cosine = torch.cat((angle.cos(), angle.cos()), dim=-1)
    sine = torch.cat((-angle.sin(), angle.sin()), dim=-1)
    torch.testing.assert_close(rotate(heads, cosine, sine), expected)
