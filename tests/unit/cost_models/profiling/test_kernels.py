"""Calls of kernels: the shapes, formats and names that each library needs, without any library installed.

The fakes have the signatures of the libraries: vLLM 0.2x, FlashAttention 2.8 and 3, PyTorch 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cost_models.profiling.device import Device, optional
from cost_models.profiling.grid import Shape
from cost_models.profiling.kernels import factories_on
from cost_models.profiling.timing import KernelError
from tests.unit.cost_models.profiling.fake_torch import FakeTorch, Tensor

HOPPER, AMPERE = (9, 0), (8, 0)


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("vllm", "flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    optional.cache_clear()
    yield
    optional.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Install a module of that name, and its parent packages."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__dict__.update(__path__=[], __version__="0.24")
        monkeypatch.setitem(sys.modules, package.__name__, package)
    module = ModuleType(name)
    module.__dict__.update(members, __path__=[])
    monkeypatch.setitem(sys.modules, name, module)
    optional.cache_clear()


def device(capability: tuple[int, int] = HOPPER, **changes: Any) -> Device:
    return Device(FakeTorch(), "cuda:0", "Card", capability, **changes)


def call(on: Device, operator: str, **cells: int | str) -> str:
    """Prepare the kernel and call it once; return its source."""
    kernel = factories_on(on)[operator](Shape(operator, cells, 0))
    kernel.call()
    return kernel.source


def prefill(on: Device, **changes: int | str) -> str:
    cells = {"kv_dtype": "bf16", "batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0}
    return call(on, "prefill_attention", **(cells | {"tokens": 32, "context": 10} | changes))


def decode(on: Device, **changes: int | str) -> str:
    cells = {"kv_dtype": "bf16", "batch": 3, "heads": 8, "kv_heads": 2, "head_dim": 64, "context": 42}
    return call(on, "decode_attention", **(cells | changes))


def shapes(arguments: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arguments.items() if isinstance(value, Tensor)}


# --- matrix products ------------------------------------------------------------------------------------------------


def test_products_multiply_by_a_transposed_weight() -> None:
    on = device()
    assert call(on, "gemm", dtype="bf16", m=32, n=64, k=128) == "torch 9.9 linear"
    assert call(on, "gemm", dtype="int8", m=32, n=64, k=128) == "torch 9.9 _int_mm"
    (_, (a, weight), _), (_, (a8, b8), _) = on.torch.calls
    assert (a.shape, weight.shape, a.dtype) == ((32, 128), (64, 128), "bf16")
    assert (a8.shape, b8.shape, b8.dtype) == ((32, 128), (128, 64), "int8")


def test_fp8_products_have_a_column_major_operand_and_float_scales() -> None:
    on = device()
    assert call(on, "gemm", dtype="fp8", m=32, n=64, k=128).startswith("torch 9.9 _scaled_mm")
    ((name, (a, b), options),) = on.torch.calls
    assert name == "_scaled_mm"
    assert (a.shape, a.dtype, a.row_major) == ((32, 128), "fp8", True)
    assert (b.shape, b.dtype, b.row_major) == ((128, 64), "fp8", False)
    assert options["scale_a"].dtype == options["scale_b"].dtype == "float32"
    assert options["out_dtype"] == "bf16"


def test_no_fp8_on_ampere() -> None:
    for operator, cells in {
        "gemm": {"dtype": "fp8", "m": 32, "n": 64, "k": 128},
        "decode_attention": {"kv_dtype": "fp8", "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 64, "context": 1},
    }.items():
        with pytest.raises(KernelError, match="no FP8"):
            call(device(AMPERE), operator, **cells)


# --- attention ------------------------------------------------------------------------------------------------------


def install_vllm(monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]) -> None:
    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        max_seqlen_q: int,
        cu_seqlens_q: Tensor,
        max_seqlen_k: int,
        cu_seqlens_k: Tensor | None = None,
        seqused_k: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: list[int] | None = None,
        block_table: Tensor | None = None,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
        num_splits: int = 0,
        fa_version: int = 2,
    ) -> None:
        calls.append(dict(locals()))

    install(
        monkeypatch,
        "vllm.vllm_flash_attn",
        flash_attn_varlen_func=flash_attn_varlen_func,
        is_fa_version_supported=lambda version: version in (2, 3),
    )


def test_vllm_attends_to_a_paged_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    install_vllm(monkeypatch, calls)
    assert prefill(device()) == "vllm 0.24 flash_attn 3"
    assert decode(device(AMPERE)) == "vllm 0.24 flash_attn 2"
    assert shapes(calls[0]) == {
        "q": (64, 8, 64),
        "k": (6, 16, 2, 64),  # 42 keys take three blocks of 16, for each of two sequences
        "v": (6, 16, 2, 64),
        "cu_seqlens_q": (3,),
        "seqused_k": (2,),
        "block_table": (2, 3),
    }
    assert (calls[0]["max_seqlen_q"], calls[0]["max_seqlen_k"]) == (32, 42)
    assert calls[0]["causal"] is True
    assert calls[0]["window_size"] == [-1, -1]
    assert calls[0]["block_table"].dtype == calls[0]["seqused_k"].dtype == calls[0]["cu_seqlens_q"].dtype == "int32"
    assert (calls[1]["q"].shape, calls[1]["k"].shape, calls[1]["max_seqlen_q"]) == ((3, 8, 64), (9, 16, 2, 64), 1)


def test_vllm_attends_in_fp8_on_hopper_and_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    install_vllm(monkeypatch, calls)
    decode(device(), kv_dtype="fp8")
    prefill(device(), window=16)
    assert {calls[0][name].dtype for name in "qkv"} == {"fp8"}
    assert {calls[0][f"{name}_descale"].shape for name in "qkv"} == {(3, 2)}
    assert calls[1]["window_size"] == [15, 0]  # itself and 15 before
    with pytest.raises(KernelError, match="no FP8 attention on this GPU"):
        decode(device((10, 0)), kv_dtype="fp8")


def flash_attention(calls: list[tuple[str, dict[str, Any]]], version: int) -> dict[str, Any]:
    descales = {"q_descale", "k_descale", "v_descale"} if version == 3 else set()

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        **options: Any,
    ) -> None:
        assert set(options) <= descales
        calls.append(("varlen", {name: value for name, value in locals().items() if name != "options"} | options))

    def kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cache_seqlens: Tensor | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        **options: Any,
    ) -> None:
        assert set(options) <= descales
        calls.append(("kvcache", {name: value for name, value in locals().items() if name != "options"} | options))

    return {"flash_attn_varlen_func": varlen, "flash_attn_with_kvcache": kvcache}


def test_flash_attention_takes_packed_prompts_and_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    install(monkeypatch, "flash_attn", **flash_attention(calls, 2))
    assert prefill(device(), window=16) == "flash_attn 2 varlen"
    assert decode(device()) == "flash_attn 2 kvcache"
    (_, packed), (_, cached) = calls
    assert shapes(packed) == {
        "q": (64, 8, 64),
        "k": (84, 2, 64),
        "v": (84, 2, 64),
        "cu_seqlens_q": (3,),
        "cu_seqlens_k": (3,),
    }
    assert (packed["max_seqlen_q"], packed["max_seqlen_k"], packed["window_size"]) == (32, 42, (15, 0))
    assert shapes(cached) == {
        "q": (3, 1, 8, 64),
        "k_cache": (3, 42, 2, 64),
        "v_cache": (3, 42, 2, 64),
        "cache_seqlens": (3,),
    }
    assert packed["causal"] is cached["causal"] is True
    with pytest.raises(KernelError, match="no FP8 attention"):
        decode(device(), kv_dtype="fp8")


def test_flash_attention_3_is_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    install(monkeypatch, "flash_attn_interface", **flash_attention(calls, 3))
    install(monkeypatch, "flash_attn", **flash_attention(calls, 2))
    assert decode(device(), kv_dtype="fp8") == "flash_attn 3 kvcache"
    assert prefill(device(AMPERE)) == "flash_attn 2 varlen"
    assert calls[0][1]["k_descale"].shape == (3, 2)


def test_pytorch_attends_without_its_kernel_that_stores_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = SimpleNamespace(causal_lower_right=lambda tokens, keys: ("lower right", tokens, keys))
    install(monkeypatch, "torch.nn.attention.bias", **vars(masks))
    on = device()
    assert prefill(on) == "torch 9.9 scaled_dot_product_attention"
    prefill(on, context=0, kv_heads=8)
    decode(on)
    chunk, prompt, token = (options for _, _, options in on.torch.calls)
    assert on.torch.math_sdp is False
    assert shapes(chunk) == {"query": (2, 8, 32, 64), "key": (2, 2, 42, 64), "value": (2, 2, 42, 64)}
    assert (chunk["attn_mask"], chunk["is_causal"], chunk["enable_gqa"]) == (("lower right", 32, 42), False, True)
    assert (prompt["attn_mask"], prompt["is_causal"], prompt["enable_gqa"]) == (None, True, False)
    assert (token["attn_mask"], token["is_causal"], token["query"].shape) == (None, False, (3, 8, 1, 64))
    for change in ({"window": 16}, {"kv_dtype": "fp8"}):
        with pytest.raises(KernelError, match="PyTorch's attention has no windows and no FP8"):
            prefill(on, **change)


# --- the rest -------------------------------------------------------------------------------------------------------


def test_norms_rope_and_activations_are_compiled() -> None:
    on = device()
    for name in ("norm", "rope", "activation", "embedding"):
        call(on, "elementwise", name=name, tokens=5, hidden=256, bytes=1)
    called = {name: [argument.shape for argument in arguments] for name, arguments, _ in on.torch.calls}
    assert called == {
        "compiled rms_norm": [(5, 256), (5, 256), (256,)],
        "compiled rotate": [(5, 2, 128), (5, 1, 128), (5, 1, 128)],
        "compiled silu_and_multiply": [(5, 512)],
        "embedding": [(5,), (128_256, 256)],
    }


def test_moe_needs_vllm() -> None:
    cells = {"dtype": "bf16", "tokens": 4, "hidden": 64, "width": 32, "experts": 8, "top_k": 2}
    with pytest.raises(KernelError, match="install vllm to measure MoE layers"):
        call(device(), "moe", **cells)


def test_moe_routes_each_token_to_some_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def fused_experts(
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: str = "silu",
        quant_config: Any = None,
    ) -> None:
        calls.append(dict(locals()))

    def fp8_w8a8_moe_quant_config(w1_scale: Tensor, w2_scale: Tensor) -> tuple[str, Tensor, Tensor]:
        return "fp8", w1_scale, w2_scale

    package = "vllm.model_executor.layers.fused_moe"
    install(monkeypatch, package, fused_experts=fused_experts)
    config = ModuleType(f"{package}.config")
    config.__dict__["fp8_w8a8_moe_quant_config"] = fp8_w8a8_moe_quant_config
    monkeypatch.setitem(sys.modules, config.__name__, config)
    cells = {"tokens": 4, "hidden": 64, "width": 32, "experts": 8, "top_k": 2}
    assert call(device(AMPERE), "moe", dtype="bf16", **cells) == "vllm 0.24 fused_experts"
    call(device(), "moe", dtype="fp8", **cells)
    assert shapes(calls[0]) == {
        "hidden_states": (4, 64),
        "w1": (8, 64, 64),  # gate and up, 32 rows each
        "w2": (8, 64, 32),
        "topk_weights": (4, 2),
        "topk_ids": (4, 2),
    }
    assert calls[0]["topk_ids"].dtype == "int32"
    assert calls[0]["quant_config"] is None
    assert (calls[1]["hidden_states"].dtype, calls[1]["w1"].dtype, calls[1]["w2"].dtype) == ("bf16", "fp8", "fp8")
    name, w1_scale, w2_scale = calls[1]["quant_config"]
    assert (name, w1_scale.shape, w2_scale.dtype) == ("fp8", (8,), "float32")
    with pytest.raises(KernelError, match="no FP8"):
        call(device(AMPERE), "moe", dtype="fp8", **cells)


def test_messages_are_of_the_bytes_asked_for() -> None:
    on = device(peers=2, world=4)
    assert call(on, "all_reduce", gpus=4, bytes=1024) == "nccl 2.27.3"
    assert call(on, "p2p", bytes=4096) == "torch 9.9 copy_, peer access"
    (reduced, (message,), _), (copied, (target, source), options) = on.torch.calls
    assert (reduced, message.shape, message.dtype) == ("all_reduce", (512,), "bf16")
    assert (copied, target.device, target.shape, source.device) == ("copy_", "cuda:1", (2048,), "cuda:0")
    assert options == {"non_blocking": True}


def test_p2p_needs_two_gpus() -> None:
    with pytest.raises(KernelError, match="there is one GPU only"):
        call(device(), "p2p", bytes=1024)
