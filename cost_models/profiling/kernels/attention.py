"""Causal attention by the best available library: vLLM's FlashAttention, FlashAttention 3 or 2, PyTorch's own.

Masks are aligned at the end: the last new token attends to all keys. No softmax scale is given: the default of all
libraries is 1 / sqrt(head_dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cost_models.profiling.campaign import Kernel
from cost_models.profiling.device import Device, optional
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import KernelError

#: Tokens of a block of the paged KV cache: vLLM's default.
_BLOCK = 16


class _Problem(NamedTuple):
    """`batch` sequences of `tokens` queries each on `keys` keys each, the queries' own included."""

    batch: int
    tokens: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    kv_dtype: str

    @property
    def windows(self) -> tuple[int, int]:
        """Keys before and after its own to which a token attends, as FlashAttention's argument; -1 for all."""
        return (self.window - 1, 0) if self.window else (-1, -1)


def prefill_attention(device: Device, shape: Shape) -> Kernel:
    """Return the attention of each sequence's new tokens to themselves and to the earlier ones."""
    tokens = shape.number("tokens")
    return _attention(device, _problem(shape, tokens, tokens + shape.number("context"), shape.number("window")))


def decode_attention(device: Device, shape: Shape) -> Kernel:
    """Return the attention of one query for each sequence."""
    return _attention(device, _problem(shape, 1, shape.number("context"), 0))


def _problem(shape: Shape, tokens: int, keys: int, window: int) -> _Problem:
    return _Problem(
        batch=shape.number("batch"),
        tokens=tokens,
        keys=keys,
        heads=shape.number("heads"),
        kv_heads=shape.number("kv_heads"),
        head_dim=shape.number("head_dim"),
        window=window,
        kv_dtype=shape.text("kv_dtype"),
    )


def _attention(device: Device, problem: _Problem) -> Kernel:
    for module, function, factory in _libraries(device):
        library = optional(module)
        if hasattr(library, function):
            return factory(device, problem, library)
    return _torch(device, problem)


def _libraries(device: Device) -> list[tuple[str, str, Callable[[Device, _Problem, Any], Kernel]]]:
    """Return modules in order of preference, each with a function that it must have, and the function that prepares its
    kernel."""
    hopper = device.capability[0] == 9
    return [
        ("vllm.vllm_flash_attn", "flash_attn_varlen_func", _vllm),
        *([("flash_attn_interface", "flash_attn_with_kvcache", _flash(3))] if hopper else []),
        ("flash_attn", "flash_attn_with_kvcache", _flash(2)),
    ]


def _vllm(device: Device, problem: _Problem, library: Any) -> Kernel:
    """Keys in a paged cache, with its blocks in random order."""
    version = _vllm_version(device, library)
    descales = _descales(device, problem, fp8=version == 3)
    torch, batch, keys = device.torch, problem.batch, problem.keys
    blocks = -(-keys // _BLOCK)
    cache = (batch * blocks, _BLOCK, problem.kv_heads, problem.head_dim)
    arguments = {
        "q": device.random(batch * problem.tokens, problem.heads, problem.head_dim, dtype=problem.kv_dtype),
        "k": device.random(*cache, dtype=problem.kv_dtype),
        "v": device.random(*cache, dtype=problem.kv_dtype),
        "cu_seqlens_q": _boundaries(device, batch, problem.tokens),
        "max_seqlen_q": problem.tokens,
        "seqused_k": torch.full((batch,), keys, dtype=torch.int32, device=device.place),
        "max_seqlen_k": keys,
        "block_table": torch.randperm(batch * blocks, device=device.place).view(batch, blocks).to(torch.int32),
        "causal": True,
        "window_size": list(problem.windows),
        "fa_version": version,
        **descales,
    }
    source = f"vllm {optional('vllm').__version__} flash_attn {version}"
    return Kernel(lambda: library.flash_attn_varlen_func(**arguments), source)


def _vllm_version(device: Device, library: Any) -> int:
    """Return the version of FlashAttention that vLLM uses: 3 on Hopper, 4 on data-centre Blackwell, 2 elsewhere."""
    version = {9: 3, 10: 4}.get(device.capability[0], 2)
    return version if library.is_fa_version_supported(version) else 2


def _flash(version: int) -> Callable[[Device, _Problem, Any], Kernel]:
    """FlashAttention as a package of its own: prompts packed one after the other, or one query on each row of a
    cache."""

    def factory(device: Device, problem: _Problem, library: Any) -> Kernel:
        common = {
            "causal": True,
            "window_size": problem.windows,
            **_descales(device, problem, fp8=version == 3),
        }
        source = f"flash_attn {version}"
        if problem.tokens == 1:
            cached = _cached(device, problem) | common
            return Kernel(lambda: library.flash_attn_with_kvcache(**cached), f"{source} kvcache")
        packed = _packed(device, problem) | common
        return Kernel(lambda: library.flash_attn_varlen_func(**packed), f"{source} varlen")

    return factory


def _cached(device: Device, problem: _Problem) -> dict[str, Any]:
    torch, dtype = device.torch, problem.kv_dtype
    cache = (problem.batch, problem.keys, problem.kv_heads, problem.head_dim)
    return {
        "q": device.random(problem.batch, 1, problem.heads, problem.head_dim, dtype=dtype),
        "k_cache": device.random(*cache, dtype=dtype),
        "v_cache": device.random(*cache, dtype=dtype),
        "cache_seqlens": torch.full((problem.batch,), problem.keys, dtype=torch.int32, device=device.place),
    }


def _packed(device: Device, problem: _Problem) -> dict[str, Any]:
    batch, dtype = problem.batch, problem.kv_dtype
    keys = (batch * problem.keys, problem.kv_heads, problem.head_dim)
    return {
        "q": device.random(batch * problem.tokens, problem.heads, problem.head_dim, dtype=dtype),
        "k": device.random(*keys, dtype=dtype),
        "v": device.random(*keys, dtype=dtype),
        "cu_seqlens_q": _boundaries(device, batch, problem.tokens),
        "cu_seqlens_k": _boundaries(device, batch, problem.keys),
        "max_seqlen_q": problem.tokens,
        "max_seqlen_k": problem.keys,
    }


def _torch(device: Device, problem: _Problem) -> Kernel:
    """Allow PyTorch's fused kernels only: serving engines do not use the one that writes all scores to memory."""
    torch = device.torch
    if problem.window or problem.kv_dtype != "bf16":
        raise KernelError("PyTorch's attention has no windows and no FP8; install vllm or flash-attn to measure them")
    torch.backends.cuda.enable_math_sdp(False)
    keys = (problem.batch, problem.kv_heads, problem.keys, problem.head_dim)
    arguments = {
        "query": device.random(problem.batch, problem.heads, problem.tokens, problem.head_dim),
        "key": device.random(*keys),
        "value": device.random(*keys),
        "attn_mask": _torch_mask(problem),
        "is_causal": problem.tokens == problem.keys,
        "enable_gqa": problem.heads != problem.kv_heads,
    }
    attention = torch.nn.functional.scaled_dot_product_attention
    return Kernel(lambda: attention(**arguments), f"torch {torch.__version__} scaled_dot_product_attention")


def _torch_mask(problem: _Problem) -> Any:
    """Return the mask of a later chunk of a prompt, aligned at the end; None for a single query and a whole prompt."""
    if problem.tokens in (1, problem.keys):
        return None
    return optional("torch.nn.attention.bias").causal_lower_right(problem.tokens, problem.keys)


def _boundaries(device: Device, batch: int, length: int) -> Any:
    """Return the offsets at which `batch` sequences of `length` start, and the last one ends: [batch + 1], INT32."""
    torch = device.torch
    return torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device.place)


def _descales(device: Device, problem: _Problem, fp8: bool) -> dict[str, Any]:
    """FP8 scales, one a sequence and KV head. Raises KernelError for FP8 where the library has none."""
    if problem.kv_dtype != "fp8":
        return {}
    if not fp8:
        raise KernelError("this library has no FP8 attention on this GPU; FlashAttention 3 on Hopper has")
    ones = device.ones(problem.batch, problem.kv_heads)
    return {"q_descale": ones, "k_descale": ones, "v_descale": ones}
