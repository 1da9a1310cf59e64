"""The kernels of each operator: what serving engines call where it is installed, and PyTorch's own otherwise."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from cost_models.profiling.campaign import Factory
from cost_models.profiling.device import Device
from cost_models.profiling.kernels.attention import decode_attention, prefill_attention
from cost_models.profiling.kernels.elementwise import elementwise
from cost_models.profiling.kernels.experts import moe
from cost_models.profiling.kernels.links import all_reduce, p2p
from cost_models.profiling.kernels.products import gemm

_FACTORIES = {
    "gemm": gemm,
    "prefill_attention": prefill_attention,
    "decode_attention": decode_attention,
    "elementwise": elementwise,
    "moe": moe,
    "all_reduce": all_reduce,
    "p2p": p2p,
}


def factories_on(device: Device) -> Mapping[str, Factory]:
    """By operator, what prepares the kernel of a shape on `device`."""
    return {operator: functools.partial(factory, device) for operator, factory in _FACTORIES.items()}
