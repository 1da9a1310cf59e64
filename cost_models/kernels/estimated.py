"""Estimated kernels of a GPU without measurements: its peaks, times usual shares of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.kernels.contract import DecodeCost
from cost_models.roofline.operands import Experts, Floats, Heads, causal_keys, causal_pairs
from cost_models.specs.dtypes import BITS
from cost_models.specs.gpu import GpuSpec, Kernel

_SECOND = 1e9
#: Network card of a GPU: 400 Gbit/s (InfiniBand NDR, one for each GPU in HGX servers), and the least time of a message.
_NETWORK_BYTES_PER_S, _NETWORK_NS = 50e9, 20_000
#: Share of NVLink's bandwidth in a message between two GPUs, and the least time of a message.
_NODE_SHARE, _NODE_NS = 0.8, 10_000


class EstimatedKernels(NamedTuple):
    """Kernels that take the longer of their arithmetic and their memory traffic, each at its share of the peak, and a
    launch.

    The traffic of a matrix product is that of its weights: activations stay in L2 while the weights limit the time.
    """

    gpu: GpuSpec

    def matrix_ns(self, dtype: str, rows: int, columns: int, tokens: Floats) -> Floats:
        """Return the time to multiply activations with a matrix, in ns."""
        weights = rows * columns
        compute, memory = self._rates(self.gpu.gemm, dtype)
        arithmetic = tokens * (2 * weights / compute)
        traffic = weights * BITS[dtype] / 8 / memory
        return np.maximum(arithmetic, traffic) + self.gpu.gemm.launch_ns

    def experts_ns(self, experts: Experts, tokens: Floats, groups: int = 1) -> Floats:
        """Return the time of the routed experts of one layer, in ns.

        Every expert in use is read once; even for few tokens, one GPU reads at least one.
        """
        weights = experts.weights
        compute, memory = self._rates(self.gpu.moe, experts.dtype)
        arithmetic = tokens * (2 * weights * experts.top_k / compute / groups)
        touched = np.maximum(experts.touched(tokens) / groups, 1.0)
        traffic = touched * (weights * BITS[experts.dtype] / 8 / memory)
        return np.maximum(arithmetic, traffic) + self.gpu.moe.launch_ns

    def elementwise_ns(self, bytes_each: float, count: Floats) -> Floats:
        """Return the time of a memory-bound kernel, in ns.

        It is constant until the memory traffic takes longer than the launch, as in measurements.
        """
        traffic = count * (bytes_each / (self.gpu.hbm_bandwidth * self.gpu.elementwise.bandwidth / _SECOND))
        return np.maximum(traffic, self.gpu.elementwise.launch_ns)

    def all_reduce_ns(self, gpus: int, size: Floats) -> Floats:
        """Return the time of an all-reduce, in ns, from the latency and the bandwidth of the group's links."""
        link = self.gpu.all_reduce_over(gpus)
        return size * (1 / (link.bandwidth / _SECOND)) + link.alpha_ns

    def all_to_all_ns(self, phase: str, gpus: int, copies: Floats, size: Floats) -> Floats:
        """Return the time of an exchange of tokens between the experts' GPUs, in ns: that of an all-reduce of as many
        bytes."""
        return self.all_reduce_ns(gpus, size) if gpus > 1 else np.zeros_like(size)

    def send_ns(self, link: str, size: Floats) -> Floats:
        """Return the time of a message from one GPU to another, in ns, from latency and bandwidth.

        A GPU without NVLink sends over the network card, or as slowly as over it.
        """
        if link == "network" or not self.gpu.nvlink_bandwidth:
            return _NETWORK_NS + size * (_SECOND / _NETWORK_BYTES_PER_S)
        return _NODE_NS + size * (_SECOND / (_NODE_SHARE * self.gpu.nvlink_bandwidth))

    def decode_attention(self, heads: Heads, decodes: Floats) -> DecodeCost:
        """Return the terms of decode attention, by number of decodes.

        A call takes a constant time, then the longer of reading the contexts and the arithmetic.
        """
        kernel = self.gpu.decode_attention
        compute = self.gpu.peak(heads.kv_dtype) * kernel.flops_share(self.gpu.compute_type(heads.kv_dtype))
        traffic = heads.key_bytes / (self.gpu.hbm_bandwidth * kernel.bandwidth)
        key = _SECOND * max(traffic, heads.key_flops / compute)
        launch = kernel.launch_ns + decodes * (key * self.gpu.decode_extra_tokens)
        return DecodeCost(launch, np.full_like(decodes, key), saved=np.zeros_like(decodes), cold_keys=1.0)

    def prefill_attention(self, heads: Heads) -> EstimatedPrefill:
        """Return the cost of prefill attention."""
        kernel = self.gpu.prefill_attention
        compute = self.gpu.peak(heads.kv_dtype) * kernel.flops_share(self.gpu.compute_type(heads.kv_dtype))
        return EstimatedPrefill(
            launch_ns=kernel.launch_ns,
            serial_ns=self.gpu.prefill_key_ns,
            context_serial_ns=self.gpu.prefill_key_ns,
            pair_ns=_SECOND * heads.pair_flops / compute,
            key_ns=_SECOND * heads.key_bytes / (self.gpu.hbm_bandwidth * kernel.bandwidth),
        )

    def _rates(self, kernel: Kernel, dtype: str) -> tuple[float, float]:
        """Return the rates of a kernel on weights stored as `dtype`: FLOPs and bytes per nanosecond."""
        compute = self.gpu.peak(dtype) * kernel.flops_share(self.gpu.compute_type(dtype))
        return compute / _SECOND, self.gpu.hbm_bandwidth * kernel.bandwidth / _SECOND


class EstimatedPrefill(NamedTuple):
    """Cost of a chunk as the longer of its arithmetic and of reading its keys."""

    launch_ns: float
    serial_ns: float
    context_serial_ns: float
    pair_ns: float
    key_ns: float

    def work_ns(self, tokens: Floats, context: Floats, window: int) -> Floats:
        """Return the time of chunks of `tokens` after `context` earlier tokens, each alone on the GPU; `window` 0 is
        none."""
        arithmetic = causal_pairs(tokens, context, window) * self.pair_ns
        return np.maximum(arithmetic, causal_keys(tokens, context, window) * self.key_ns)
