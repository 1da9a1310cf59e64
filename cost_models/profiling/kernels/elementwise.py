"""Memory-bound kernels. `elementwise_bytes` in `grid` has the bytes that each of them moves.

Norms, RoPE and activations are compiled by PyTorch into one kernel each, as in vLLM by default; as separate operations
they would move several times the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cost_models.profiling.campaign import Kernel
from cost_models.profiling.device import Device
from cost_models.profiling.grid import ROPE_DIM, Shape

_EPSILON = 1e-6
#: Rows of the embedding table: Llama 3's vocabulary.
_VOCABULARY = 128_256


def elementwise(device: Device, shape: Shape) -> Kernel:
    """Prepare the kernel `name` on `tokens` rows of `hidden` numbers."""
    return _KERNELS[shape.text("name")](device, shape.number("tokens"), shape.number("hidden"))


def _norm(device: Device, tokens: int, hidden: int) -> Kernel:
    x, residual, weight = device.random(tokens, hidden), device.random(tokens, hidden), device.random(hidden)
    norm = _compiled(device, rms_norm)
    return Kernel(lambda: norm(x, residual, weight), _compiler(device))


def _rope(device: Device, tokens: int, hidden: int) -> Kernel:
    x = device.random(tokens, hidden // ROPE_DIM, ROPE_DIM)
    cosine, sine = device.random(tokens, 1, ROPE_DIM), device.random(tokens, 1, ROPE_DIM)
    rope = _compiled(device, rotate)
    return Kernel(lambda: rope(x, cosine, sine), _compiler(device))


def _activation(device: Device, tokens: int, hidden: int) -> Kernel:
    x = device.random(tokens, 2 * hidden)
    activation = _compiled(device, silu_and_multiply)
    return Kernel(lambda: activation(x), _compiler(device))


def _embedding(device: Device, tokens: int, hidden: int) -> Kernel:
    torch = device.torch
    table = device.random(_VOCABULARY, hidden)
    ids = torch.randint(0, _VOCABULARY, (tokens,), device=device.place)
    return Kernel(lambda: torch.nn.functional.embedding(ids, table), f"torch {torch.__version__} embedding")


def _sampling(device: Device, tokens: int, hidden: int) -> Kernel:
    """Prepare random sampling as in vLLM: the largest of probabilities over exponential noise."""
    logits = device.random(tokens, hidden)

    def call() -> object:
        probabilities = logits.float().softmax(dim=-1)
        noise = device.torch.empty_like(probabilities).exponential_()
        return probabilities.div_(noise).argmax(dim=-1)

    return Kernel(call, f"torch {device.torch.__version__} softmax, exponential_, argmax")


_KERNELS: dict[str, Callable[[Device, int, int], Kernel]] = {
    "norm": _norm,
    "rope": _rope,
    "activation": _activation,
    "embedding": _embedding,
    "sampling": _sampling,
}


@functools.cache
def _compiled(device: Device, function: Callable[..., object]) -> Callable[..., object]:
    """Compile `function` for any sizes: once, or twice, since a single token is a separate case."""
    compiled: Callable[..., object] = device.torch.compile(function, dynamic=True, fullgraph=True)
    return compiled


def _compiler(device: Device) -> str:
    return f"torch {device.torch.__version__} compile"


# --- compiled functions -----------------------------------------------------------------------------------------------


def rms_norm(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    """Return RMSNorm of x + residual, [tokens, hidden], and that sum: the next residual."""
    total = x.float() + residual.float()
    scale = (total.square().mean(dim=-1, keepdim=True) + _EPSILON).rsqrt()
    return (total * scale).to(x.dtype) * weight, total.to(x.dtype)


def rotate(x: Any, cosine: Any, sine: Any) -> Any:
    """Return the rotary embedding of x, [tokens, heads, dim], by halves.

    `cosine` and `sine`, [tokens, 1, dim], have each angle twice, the sine negative in the first half.
    """
    return x * cosine + x.roll(ROPE_DIM // 2, dims=-1) * sine


def silu_and_multiply(x: Any) -> Any:
    """Return SiLU of the gate times the value; x, [tokens, 2 x width], has gate and value side by side."""
    gate, value = x.chunk(2, dim=-1)
    return gate * gate.sigmoid() * value
