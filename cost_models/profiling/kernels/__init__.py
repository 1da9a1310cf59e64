"""The kernels of each operator: those of serving engines if they are installed, else PyTorch's own."""

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
    """Return by operator the function that prepares the kernel of a shape on `device`."""
    return {operator: functools.partial(factory, device) for operator, factory in _FACTORIES.items()}
