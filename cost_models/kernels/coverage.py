"""Differences between a deployment and the measurements from which its costs are computed."""

from __future__ import annotations

import numpy as np

from cost_models.kernels.calibrated import CalibratedKernels
from cost_models.laws.all_to_all import remote_copies
from cost_models.roofline.architecture import attention_heads, lm_head_matrix
from cost_models.roofline.operators import LM_HEAD_TYPE, Deployed
from cost_models.specs.dtypes import ACTIVATION_BYTES

#: The LM head of a large vocabulary has more columns than any measured matrix. It reads its weights at the rate of the
#: matrices with the most columns, a rate that no longer depends on the columns: up to this many times their columns it
#: is not reported as extrapolated.
_HEAD_COLUMNS = 4


def outside_calibration(deployed: Deployed, kv_cache: str, max_tokens: int) -> list[str]:
    """List the parts of a deployment with steps of up to `max_tokens` that were not measured, as texts for a warning.

    The list is empty for a GPU without a calibration, for which every cost is an estimate.
    """
    kernels, model, tensor_parallel = deployed.kernels, deployed.model, deployed.tensor_parallel
    if not isinstance(kernels, CalibratedKernels):
        return []
    gpu, found = deployed.gpu, []
    if kernels.measured_on != gpu.name:
        found.append(f"kernels of {kernels.measured_on}, at the peaks of {gpu.name}")
    for matrix, dtype in deployed.matrices:
        if matrix.operator != "moe":  # a router takes the time of a launch, for any number of columns
            found += kernels.matrix_outside(dtype, matrix.rows, matrix.columns, max_tokens)
    if deployed.last:
        head = lm_head_matrix(model, tensor_parallel)
        found += kernels.matrix_outside(LM_HEAD_TYPE, head.rows, -(-head.columns // _HEAD_COLUMNS), max_tokens)
    if model.moe_layers:
        found += _experts_outside(deployed, kernels, max_tokens)
    found += kernels.attention_outside(attention_heads(model, tensor_parallel, kv_cache))
    if tensor_parallel > 1:
        found += kernels.all_reduce_outside(tensor_parallel, max_tokens * model.hidden * ACTIVATION_BYTES)
    return list(dict.fromkeys(found))


def _experts_outside(deployed: Deployed, kernels: CalibratedKernels, max_tokens: int) -> list[str]:
    """Return the shapes outside the laws of the routed experts, and of the exchange of tokens between their ranks."""
    model, moe, split = deployed.model, deployed.model.moe, deployed.split
    assert moe is not None
    found = []
    for _, experts in deployed.experts:
        found += kernels.experts_outside(experts, deployed.data_parallel * max_tokens, split.groups)
    if deployed.data_parallel > 1:
        own = np.array([max_tokens / deployed.tensor_parallel])
        copies = remote_copies(split.gpus, own, moe.top_k) if deployed.expert_parallel else own * (split.gpus - 1)
        size = float(copies[0]) * model.hidden * ACTIVATION_BYTES
        for phase in ("dispatch", "combine"):
            found += kernels.all_to_all_outside(phase, split.gpus, size)
    return found
