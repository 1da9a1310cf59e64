"""The time of attention: decodes from the totals of their contexts, prefill chunks one by one."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.kernels.contract import Kernels
from cost_models.laws.decode_attention import query_ns
from cost_models.roofline.operands import Floats, Heads
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.model import ModelSpec

Chunks = tuple[tuple[int, int], ...]
_SECOND = 1e9

#: Knots an octave of the table of chunks: a chunk's time is at most quadratic, so that straight lines between knots
#: that are 19% apart are within 0.8% of it.
_KNOTS_PER_OCTAVE = 4
_LONGEST_CHUNK = 131_072


class DecodeTerms(NamedTuple):
    """Nanoseconds of the decodes of a step, all layers, given their number: `launch`, and each key of all decodes at
    `full` in the layers with full attention and at `window` in those with a window. The former spare `saved` without
    keys, and nothing from `cold_keys` on; see `DecodeCost`."""

    launch: float
    full: float
    window: float
    saved: float
    cold_keys: float

    def ns(self, context: int, in_window: int) -> float:
        """The time of a step, given the totals of the decodes' contexts and of those within the window."""
        launch, full, window, saved, cold_keys = self
        time = launch + full * context + window * in_window
        if context < cold_keys:
            time -= saved * (1 - context / cold_keys)
        return time

    def run_ns(self, context: NDArray[np.integer], in_window: int | NDArray[np.integer]) -> Floats:
        """The time of each of several steps, to the bit what `ns` says of it; `context` is (k,), `in_window` (k,) or
        the same for all."""
        launch, full, window, saved, cold_keys = self
        time = launch + full * context + window * in_window
        return time - saved * np.maximum(0.0, 1 - context / cold_keys)


class DecodeLaw:
    """The terms of every number of decodes, tabulated up to `most`. `scale` multiplies kernel times.

    With drafts a decode has several queries, which read its keys together: the keys cost what they cost one query,
    until the arithmetic of all queries takes longer. That is at the share of the peak that the GPU's decode attention
    reaches (`GpuSpec.decode_attention`): it is what MLA with 128 heads, whose one query is bound by it, reaches on H100
    and H200 as measured, and FlashMLA claims (580 of 989 TFLOP/s). Heads that share few KV heads meet it from some 40
    queries on, MLA's at once. On top, each draft's queries and outputs pass through HBM.

    Drafts are taken to be spread evenly over the decodes. A decode that joins with fewer than the mean may so shorten a
    step that arithmetic bounds.
    """

    __slots__ = ("_heads", "_kernels", "_model", "_pair", "_query", "_scale", "_terms", "_window_pair")

    def __init__(self, model: ModelSpec, kernels: Kernels, heads: Heads, gpu: GpuSpec, scale: float, most: int) -> None:
        self._model, self._kernels, self._heads, self._scale = model, kernels, heads, scale
        self._terms = self._tabulate(np.arange(most + 1, dtype=float))
        rate = gpu.peak(heads.kv_dtype) * gpu.decode_attention.flops_share(gpu.compute_type(heads.kv_dtype))
        pair = scale * _SECOND * heads.key_flops / rate
        self._pair, self._window_pair = model.full_layers * pair, model.window_layers * pair
        self._query = scale * model.layers * query_ns(heads, gpu)

    def ns(self, decodes: int, drafts: int, context: int, in_window: int) -> float:
        """The time of `decodes` (1 or more) with `drafts` among them, given the totals of their contexts."""
        table = self._terms
        terms = table[decodes] if decodes < len(table) else self.terms(decodes)
        launch, full, window, saved, cold_keys = terms  # as `DecodeTerms.ns`, without the call: it is in every step
        time = launch + full * context + window * in_window
        if context < cold_keys:
            time -= saved * (1 - context / cold_keys)
        if not drafts:
            return time
        full, window = self._arithmetic(decodes, drafts)
        arithmetic = terms.launch + full * context + window * in_window
        return (time if time > arithmetic else arithmetic) + self._query * drafts

    def run_ns(self, decodes: int, drafts: int, context: NDArray[np.integer], in_window: int) -> Floats:
        """The time of each of several steps, to the bit what `ns` says of it; `context` is (k,)."""
        terms = self.terms(decodes)
        time = terms.run_ns(context, in_window)
        if not drafts:
            return time
        full, window = self._arithmetic(decodes, drafts)
        arithmetic = terms.launch + full * context + window * in_window
        bound: Floats = np.maximum(time, arithmetic) + self._query * drafts
        return bound

    def _arithmetic(self, decodes: int, drafts: int) -> tuple[float, float]:
        """Nanoseconds of all queries' arithmetic with a key, in the layers with full attention and with a window."""
        queries = (decodes + drafts) / decodes
        return queries * self._pair, queries * self._window_pair

    def terms(self, decodes: int) -> DecodeTerms:
        """The terms of that many decodes."""
        if decodes < len(self._terms):
            return self._terms[decodes]
        return self._tabulate(np.array([decodes], dtype=float))[0]

    def _tabulate(self, decodes: Floats) -> list[DecodeTerms]:
        model, cost = self._model, self._kernels.decode_attention(self._heads, decodes)
        launch = np.where(decodes > 0, model.layers * cost.launch, 0.0)
        saved = np.where(decodes > 0, model.full_layers * cost.saved, 0.0)
        times = (launch, model.full_layers * cost.key, model.window_layers * cost.key, saved)
        columns = [(self._scale * time).tolist() for time in times]
        return [DecodeTerms(a, b, c, d, cost.cold_keys) for a, b, c, d in zip(*columns, strict=True)]


class PrefillLaw:
    """Nanoseconds of prefill attention, all layers: a table of a chunk's work over its tokens and earlier context.

    The work is tabulated at knots and linear between them; it is convex along both, so that straight lines are never
    below it, and stay monotone. Beyond the last knot of the context, the last line goes on.
    """

    __slots__ = ("_contexts", "_earlier", "_earlier_window", "_launch", "_serial", "_tokens", "_window", "_work")

    def __init__(self, model: ModelSpec, kernels: Kernels, heads: Heads, scale: float) -> None:
        cost = kernels.prefill_attention(heads)
        self._launch = scale * model.layers * cost.launch_ns
        self._serial = scale * model.layers * cost.serial_ns
        self._earlier = scale * model.full_layers * cost.context_serial_ns
        self._earlier_window = scale * model.window_layers * cost.context_serial_ns
        self._window = model.sliding_window
        self._tokens = _knots(1, max(model.max_position, _LONGEST_CHUNK))
        self._contexts = [0, *_knots(16, max(model.max_position, 32))]
        tokens, contexts = (axis.ravel() for axis in np.meshgrid(self._tokens, self._contexts, indexing="ij"))
        tokens, contexts = tokens.astype(float), contexts.astype(float)
        work = model.full_layers * cost.work_ns(tokens, contexts, 0)
        if model.window_layers:
            work = work + model.window_layers * cost.work_ns(tokens, contexts, model.sliding_window)
        work = work + model.layers * _up_projection_ns(model, kernels, heads, contexts)
        grid = (scale * work).reshape(len(self._tokens), len(self._contexts))
        grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
        self._work: list[list[float]] = grid.tolist()

    def ns(self, chunks: Chunks) -> float:
        """The time of all chunks in one kernel a layer.

        They share the GPU, so their work adds up; but the longest takes at least as long as a thread block
        that passes its keys one after the other, which is what bounds a short chunk on a long context.
        """
        rows, columns, grid, window = self._tokens, self._contexts, self._work, self._window
        serial, earlier, last_row, last_column = self._serial, self._earlier, len(rows) - 2, len(columns) - 2
        work = longest = 0.0
        for tokens, context in chunks:
            row = bisect_right(rows, tokens) - 1
            if row > last_row:
                row = last_row
            low, high, top = grid[row], grid[row + 1], rows[row]
            if context:
                column = bisect_right(columns, context) - 1
                if column > last_column:
                    column = last_column
                left = columns[column]
                share = (context - left) / (columns[column + 1] - left)
                first, second = low[column], high[column]
                first += (low[column + 1] - first) * share
                second += (high[column + 1] - second) * share
            else:
                first, second = low[0], high[0]
            work += first + (second - first) * ((tokens - top) / (rows[row + 1] - top))
            path = serial * tokens + earlier * context
            if window:
                path += self._earlier_window * min(context, window - 1)
            if path > longest:
                longest = path
        return self._launch + (work if work > longest else longest)


def _up_projection_ns(model: ModelSpec, kernels: Kernels, heads: Heads, context: Floats) -> Floats:
    """Time in which MLA turns the cached latents of a chunk's earlier context into keys and values; 0 without MLA."""
    if model.mla is None:
        return np.zeros_like(context)
    columns = heads.heads * (model.mla.qk_nope_head_dim + model.mla.v_head_dim)
    time = kernels.matrix_ns("bf16", model.mla.kv_lora_rank, columns, context)
    return np.where(context > 0, time, 0.0)


def _knots(first: int, last: int) -> list[int]:
    """Integers from `first` to at least `last`, each next one at most a quarter octave (or 1) beyond."""
    knots = [first]
    while knots[-1] < last or len(knots) < 2:
        knots.append(max(knots[-1] + 1, int(knots[-1] * 2 ** (1 / _KNOTS_PER_OCTAVE))))
    return knots
