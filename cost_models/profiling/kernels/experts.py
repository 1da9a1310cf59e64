"""The experts of an MoE layer, by vLLM's fused kernel: a loop over experts would measure its own launches."""

from __future__ import annotations

from typing import Any

from cost_models.profiling.campaign import Kernel
from cost_models.profiling.device import Device, optional
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import KernelError

_PACKAGE = "vllm.model_executor.layers.fused_moe"


def moe(device: Device, shape: Shape) -> Kernel:
    """Prepare all experts of a layer, on tokens that are routed at random. Raises KernelError without vLLM."""
    layer = optional(_PACKAGE)
    if layer is None or not hasattr(layer, "fused_experts"):
        raise KernelError("needs vLLM's fused experts; install vllm to measure MoE layers")
    dtype = shape.text("dtype")
    if dtype == "fp8":
        device.need_fp8()
    hidden, width, experts = shape.number("hidden"), shape.number("width"), shape.number("experts")
    weights, choices = _routing(device, shape)
    arguments = {
        "hidden_states": device.random(shape.number("tokens"), hidden),
        "w1": device.random(experts, 2 * width, hidden, dtype=dtype),  # gate and up
        "w2": device.random(experts, hidden, width, dtype=dtype),
        "topk_weights": weights,
        "topk_ids": choices,
    }
    if dtype == "fp8":
        scales = device.ones(experts)
        config = optional(f"{_PACKAGE}.config")
        arguments["quant_config"] = config.fp8_w8a8_moe_quant_config(w1_scale=scales, w2_scale=scales)
    return Kernel(lambda: layer.fused_experts(**arguments), f"vllm {optional('vllm').__version__} fused_experts")


def _routing(device: Device, shape: Shape) -> tuple[Any, Any]:
    """Return weights and ids of the experts of each token, [tokens, top_k]: every set is equally likely."""
    torch = device.torch
    scores = torch.rand(shape.number("tokens"), shape.number("experts"), device=device.place)
    best, ids = scores.topk(shape.number("top_k"), dim=-1)
    return best / best.sum(dim=-1, keepdim=True), ids.to(torch.int32)
