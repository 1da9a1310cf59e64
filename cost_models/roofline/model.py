"""The roofline: the time of a step from the model's dimensions and the GPU's kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost_models.kernels.calibrated import CalibratedKernels, kernels_of
from cost_models.kernels.coverage import outside_calibration
from cost_models.roofline.architecture import attention_heads, check_expert_split, check_tensor_parallel
from cost_models.roofline.attention import Chunks, DecodeLaw, PrefillLaw
from cost_models.roofline.bound import Bound
from cost_models.roofline.operators import (
    HOST_PARTS,
    Deployed,
    all_reduces,
    row_terms,
    token_terms,
)
from cost_models.roofline.shared_experts import SharedExperts
from cost_models.roofline.stages import Stage
from cost_models.roofline.whole_ns import first_of_each, total, whole
from cost_models.shape import BatchShape, Ints, StepCost
from cost_models.specs.dtypes import kv_type, weight_types
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import DEFAULT_LIMITS, DEFAULT_SOURCES, SINGLE_GPU, Placement, StepLimits, TimeSources

#: Steps with more tokens are computed one by one: tables for a budget of a million tokens would take too long to build.
_TABLE_TOKENS = 65_536
_SECOND = 1e9
_new_tuple = tuple.__new__


class Roofline:
    """A model on a GPU, or on each GPU of a tensor-parallel group.

    Times that depend only on the number of tokens, or of sampled rows, are tabulated at the start in whole ns, so that
    a step needs two look-ups and the attention. With drafts, each sequence's keys are read once for all of its queries
    (see `DecodeLaw`), and its logits are computed for every draft.

    Data-parallel ranks that share experts step together: `lockstep_cost` is the time of such a step. The other methods
    assume the same shape for all ranks.
    """

    __slots__ = (
        "_bound",
        "_cpu",
        "_decode",
        "_deployed",
        "_drafted",
        "_plain",
        "_prefill",
        "_row_table",
        "_shared",
        "_token_table",
        "calibrated",
        "formats",
        "outside",
        "window",
    )

    def __init__(self, deployed: Deployed, kv_cache: str, limits: StepLimits) -> None:
        max_tokens, max_seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        model, kernels = deployed.model, deployed.kernels
        heads = attention_heads(model, deployed.tensor_parallel, kv_cache)
        limit = min(max_tokens + max_seqs, _TABLE_TOKENS)
        host = deployed.host
        self.window = model.sliding_window
        #: CPU time in ns: of a step without prompts, of a step with prompts, and of a sequence.
        self._cpu = (
            _SECOND * host.cpu_step,
            _SECOND * (host.cpu_step + host.cpu_prefill_step),
            _SECOND * host.cpu_sequence,
        )
        self._deployed = deployed
        #: Whether kernels are measured ones (True) or estimates.
        self.calibrated = isinstance(kernels, CalibratedKernels)
        #: The formats in which weights are stored.
        self.formats = deployed.types
        #: Parts of the deployment that were not measured, as texts; see `coverage`.
        self.outside = outside_calibration(deployed, kv_cache, max_tokens)
        self._bound = Bound(deployed, kv_cache)
        self._decode = DecodeLaw(model, kernels, heads, deployed.gpu, host.kernel_scale, min(limit, max_seqs))
        self._prefill = PrefillLaw(model, kernels, heads, host.kernel_scale)
        counts = np.arange(limit + 1, dtype=float)
        self._token_table = total(whole(token_terms(deployed, counts)), limit)
        self._row_table = total(whole(row_terms(deployed, counts)), limit)
        ranks = deployed.data_parallel
        self._shared = SharedExperts(deployed, limit, min(ranks * limit, _TABLE_TOKENS))
        if ranks > 1:
            self._token_table = (np.array(self._token_table) + self._shared.equal_ns()).tolist()
        self._plain = [
            (*self._decode.terms(count), self._token_table[count] + self._row_table[count], self._host_ns(count, ()))
            for count in range(min(limit, max_seqs) + 1)
        ]

        self._drafted: dict[tuple[int, int, int], tuple[tuple[float, ...], int]] = {}  # terms of `decodes_ns`

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the time of the step `shape`."""
        decodes, context, in_window, chunks, _, sampled, drafts, _ = shape
        if not chunks and not drafts and decodes == sampled and 0 < decodes < len(self._plain):
            # Most steps: the same as below, from one table. The plain tuple's constructor takes half the time of the
            # named one's.
            launch, full, window, saved, cold_keys, others_ns, host_ns = self._plain[decodes]
            time = launch + full * context + window * in_window
            if context < cold_keys:
                time -= saved * (1 - context / cold_keys)
            return _new_tuple(StepCost, (int(time) + others_ns, host_ns, 0))
        if decodes and not chunks:
            device_ns = self.decodes_ns(decodes, drafts, context, in_window, sampled + drafts)
            host_ns = self._plain[decodes][-1] if decodes < len(self._plain) else self._host_ns(decodes, ())
            return _new_tuple(StepCost, (device_ns, host_ns, 0))
        tokens = decodes + drafts
        device_ns = 0
        if chunks:
            for chunk_tokens, _ in chunks:
                tokens += chunk_tokens
            device_ns = int(self._prefill.ns(chunks))
        if decodes:
            device_ns += int(self._decode.ns(decodes, drafts, context, in_window))
        rows, token_table, row_table = sampled + drafts, self._token_table, self._row_table
        if tokens < len(token_table) and rows < len(row_table):  # as in `_others_ns`, without the time of a call
            device_ns += token_table[tokens] + row_table[rows]
        else:
            device_ns += self._others_ns(tokens, rows)
        return _new_tuple(StepCost, (device_ns, self._host_ns(decodes, chunks), 0))

    def _host_ns(self, decodes: int, chunks: Chunks) -> int:
        """Return the CPU time of preparing a step, in ns."""
        step, prefill_step, sequence = self._cpu
        return int((prefill_step if chunks else step) + sequence * (decodes + len(chunks)))

    def decodes_ns(self, decodes: int, drafts: int, context: int, in_window: int, rows: int) -> int:
        """Return the device time of a step of 1 decode or more with `drafts` drafts and logits of `rows`, in ns.

        It is the time of `step_cost`, for callers that need it several times a step.
        """
        known = self._drafted.get((decodes, drafts, rows))
        if known is None:
            known = self._decode.drafted(decodes, drafts), self._others_ns(decodes + drafts, rows)
            self._drafted[decodes, drafts, rows] = known
        (launch, full, window, saved, cold_keys, pair, window_pair, queries), others_ns = known
        time = launch + full * context + window * in_window  # as in `DecodeLaw.ns`, without the time of a call
        if context < cold_keys:
            time -= saved * (1 - context / cold_keys)
        if drafts:
            arithmetic = launch + pair * context + window_pair * in_window
            time = (time if time > arithmetic else arithmetic) + queries
        return int(time) + others_ns

    def decodes_run_ns(self, decodes: int, drafts: int, context: Ints, in_window: Ints, rows: int) -> Ints:
        """Return the times of `decodes_ns` for several steps with these contexts, in ns; arrays are (n,)."""
        attention = self._decode.run_ns(decodes, drafts, context, in_window).astype(np.int64)
        return attention + self._others_ns(decodes + drafts, rows)

    def _others_ns(self, tokens: int, rows: int) -> int:
        """Return the time of a step of so many tokens and rows of logits without its attention."""
        token_table, row_table = self._token_table, self._row_table
        token_ns = token_table[tokens] if tokens < len(token_table) else sum(self._token_parts(tokens).values())
        return token_ns + (row_table[rows] if rows < len(row_table) else sum(self._row_parts(rows).values()))

    def lockstep_cost(self, shapes: Sequence[BatchShape]) -> StepCost:
        """Return the time of a common step of all ranks; `shapes` has the shape of each, empty if the rank is idle.

        Ranks wait for the slowest in every layer with experts; then they exchange tokens for as long as the rank with
        the most tokens needs, and compute the experts for all. For equal shapes the time is that of `step_cost`. An
        idle rank sends one token to the experts, that of its dummy batch (vLLM: `execute_dummy_batch`), which runs in a
        CUDA graph like others.
        """
        ranks = idle = self._deployed.data_parallel
        slowest = host = everywhere = most = 0
        for shape in shapes:
            tokens = shape.tokens
            if tokens:
                device, cpu, _ = self.step_cost(shape)
                slowest = max(slowest, device - self._shared.ns(tokens, ranks * tokens))
                host, most = max(host, cpu), max(most, tokens)
                everywhere += tokens
                idle -= 1
        if not most:
            return StepCost(0, 0)
        return StepCost(slowest + self._shared.ns(most, everywhere + idle), host)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k pure decode steps, in ns; `shape` is the first. Raises ValueError for
        chunks."""
        if shape.chunks:
            raise ValueError(f"expected a pure decode step, found {len(shape.chunks)} prefill chunks")
        attention = self._decode_ns(shape, k)
        return attention + (self.step_cost(shape).device_ns - attention[:1])

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, equal to those of `step_cost`."""
        device_ns = np.empty(len(decodes), np.int64)
        for count in np.flatnonzero(np.bincount(decodes)).tolist():
            rows = np.flatnonzero(decodes == count)
            attention = self._decode.terms(count).run_ns(context[rows], window_context[rows]).astype(np.int64)
            device_ns[rows] = attention + self._without_attention_ns(count)
        step, _, sequence = self._cpu
        return device_ns, (step + sequence * decodes).astype(np.int64)

    def _without_attention_ns(self, decodes: int) -> int:
        """Return the time of a pure decode step without its attention."""
        return self.step_cost(BatchShape(decodes, 0, 0, (), 0, decodes)).device_ns - int(
            self._decode.terms(decodes).ns(0, 0)
        )

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time by operator."""
        parts = self._token_parts(shape.tokens)
        parts.update(self._row_parts(shape.sampled + shape.draft_tokens))
        parts["prefill_attention"] = int(self._prefill.ns(shape.chunks)) if shape.chunks else 0
        parts["decode_attention"] = int(self._decode_ns(shape, 1)[0])
        return parts

    def host_units(self, shape: BatchShape) -> tuple[float, float, float, float]:
        """Return the ns of the step for one unit of each GPU term of the host model (`calibration.host.STEP_TERMS`):
        kernels alone, a step, logits, and all-reduces times doublings."""
        deployed, parts = self._deployed, self.breakdown(shape)
        kernels = sum(time for name, time in parts.items() if name not in HOST_PARTS)
        rows, doublings = shape.sampled + shape.draft_tokens, math.log2(deployed.tensor_parallel)
        return (
            kernels / deployed.host.kernel_scale,
            _SECOND,
            _SECOND * rows * deployed.model.vocab,
            _SECOND * all_reduces(deployed.model, deployed.first) * doublings,
        )

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of the step in ns, rounded down.

        That is the longer of reading its weights and keys once at the peak bandwidth, and of its arithmetic at the peak
        rate.
        """
        return int(self._bound.ns(shape))

    def _decode_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the decode attention of k steps, in ns, bit for bit that of `step_cost`."""
        if not shape.decodes:
            return np.zeros(k, dtype=np.int64)
        context = shape.decode_context + shape.decodes * np.arange(k, dtype=np.int64)
        time = self._decode.run_ns(shape.decodes, shape.draft_tokens, context, shape.decode_window_context)
        return time.astype(np.int64)

    def _token_parts(self, tokens: int) -> dict[str, int]:
        parts = first_of_each(whole(token_terms(self._deployed, np.array([tokens], dtype=float))))
        ranks = self._deployed.data_parallel
        if ranks > 1:
            parts["all_to_all"] = self._shared.exchange_ns(tokens)
            parts["moe"] += self._shared.experts_ns(ranks * tokens)
        return parts

    def _row_parts(self, rows: int) -> dict[str, int]:
        return first_of_each(whole(row_terms(self._deployed, np.array([rows], dtype=float))))


def build_roofline(
    model: ModelSpec,
    gpu: GpuSpec,
    placement: Placement = SINGLE_GPU,
    limits: StepLimits = DEFAULT_LIMITS,
    sources: TimeSources = DEFAULT_SOURCES,
) -> Roofline:
    """Build the roofline of `model` on `gpu`, with tables for steps up to the limits.

    Data-parallel ranks share the experts of a mixture of experts; ranks of a dense model share nothing.

    Raises:
        CostModelError: heads or experts cannot be split, or the GPU has no all-reduce for that many GPUs.
    """
    check_tensor_parallel(model, placement.tensor_parallel)
    check_expert_split(model, placement.split)
    return stage_roofline(Stage(model), gpu, placement, limits, sources)


def stage_roofline(
    stage: Stage, gpu: GpuSpec, placement: Placement, limits: StepLimits, sources: TimeSources
) -> Roofline:
    """Build the roofline of one stage of a model; the split by `placement` has been checked."""
    layers, first, last = stage
    deployed = Deployed(
        layers,
        gpu,
        kernels_of(gpu, sources.calibration),
        sources.host,
        placement.tensor_parallel,
        weight_types(layers, placement.weights),
        placement.data_parallel if layers.moe else 1,
        placement.expert_parallel,
        first,
        last,
    )
    return Roofline(deployed, kv_type(placement.kv_cache), limits)
