"""Time of attention: of decodes from the totals of their contexts, of prefill chunks one by one."""

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

#: Knots per octave of the table of chunks. The time of a chunk is at most quadratic, so that lines between knots 19%
#: apart have an error below 0.8%.
_KNOTS_PER_OCTAVE = 4
_LONGEST_CHUNK = 131_072


class DecodeTerms(NamedTuple):
    """Nanoseconds of the decodes of a step over all layers, for a given number of decodes.

    `launch` is the fixed time; each key of all decodes takes `full` in the layers with full attention and `window` in
    those with a window. With few keys in the layers with full attention the time is shorter: by `saved` without keys,
    by 0 from `cold_keys` keys on; see `DecodeCost`.
    """

    launch: float
    full: float
    window: float
    saved: float
    cold_keys: float

    def ns(self, context: int, in_window: int) -> float:
        """Return the time of a step from the totals of the decodes' contexts and of their contexts within the
        window."""
        launch, full, window, saved, cold_keys = self
        time = launch + full * context + window * in_window
        if context < cold_keys:
            time -= saved * (1 - context / cold_keys)
        return time

    def run_ns(self, context: NDArray[np.integer], in_window: int | NDArray[np.integer]) -> Floats:
        """Return the time of each of several steps, bit for bit that of `ns`; `context` is (k,), `in_window` (k,) or a
        number."""
        launch, full, window, saved, cold_keys = self
        time = launch + full * context + window * in_window
        return time - saved * np.maximum(0.0, 1 - context / cold_keys)


class DecodeLaw:
    """The terms for every number of decodes, tabulated up to `most`. `scale` multiplies kernel times.

    With drafts a decode has several queries, which read its keys together: a key takes as long as for one query, unless
    the arithmetic of all queries takes longer. The rate of this arithmetic is the share of the peak in the GPU's file
    (`GpuSpec.decode_attention`): the share measured on H100 and H200 for MLA with 128 heads, whose single query is
    limited by arithmetic, and published for FlashMLA (580 of 989 TFLOP/s). Heads with few KV heads are limited by it
    from about 40 queries on, MLA's heads from the first. In addition, each draft's queries and outputs pass through
    HBM.

    Drafts are assumed to be spread evenly over the decodes. Therefore a further decode with fewer drafts than the mean
    may shorten a step that is limited by arithmetic.
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
        """Return the time of `decodes` (1 or more) with `drafts` among them, from the totals of their contexts."""
        table = self._terms
        terms = table[decodes] if decodes < len(table) else self.terms(decodes)
        launch, full, window, saved, cold_keys = terms  # as in `DecodeTerms.ns`, without the time of a call
        time = launch + full * context + window * in_window
        if context < cold_keys:
            time -= saved * (1 - context / cold_keys)
        if not drafts:
            return time
        queries = (decodes + drafts) / decodes  # all of their arithmetic, with one key in the layers of each kind
        arithmetic = launch + queries * self._pair * context + queries * self._window_pair * in_window
        return (time if time > arithmetic else arithmetic) + self._query * drafts

    def run_ns(
        self, decodes: int, drafts: int, context: NDArray[np.integer], in_window: int | NDArray[np.integer]
    ) -> Floats:
        """Return the time of each of several steps, bit for bit that of `ns`; `context` is (k,), `in_window` (k,) or a
        number."""
        terms = self.terms(decodes)
        time = terms.run_ns(context, in_window)
        if not drafts:
            return time
        _, _, _, _, _, pair, window_pair, queries = self.drafted(decodes, drafts)
        bound: Floats = np.maximum(time, terms.launch + pair * context + window_pair * in_window) + queries
        return bound

    def drafted(self, decodes: int, drafts: int) -> tuple[float, ...]:
        """Return the terms of `ns` that do not depend on the contexts: the five of `terms`; the time of all queries'
        arithmetic for a key in the layers of each kind; and that of the drafts' queries and outputs."""
        queries = (decodes + drafts) / decodes
        return (*self.terms(decodes), queries * self._pair, queries * self._window_pair, self._query * drafts)

    def terms(self, decodes: int) -> DecodeTerms:
        """Return the terms for these numbers of decodes."""
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
    """Nanoseconds of prefill attention over all layers: a table of a chunk's work by its tokens and its earlier
    context.

    The work is computed at knots and linear between them. It is convex along both axes, so that the lines are never
    below it, and they are monotone. Beyond the last knot of the context, the last line continues.
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
        """Return the time of all chunks in one kernel per layer.

        Chunks share the GPU, so that their work adds up. But the longest chunk takes at least the time of a thread
        block that reads its keys one after the other, which limits a short chunk after a long context.
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
    """Return the time in which MLA computes keys and values from the cached latents of the earlier context; 0 without
    MLA."""
    if model.mla is None:
        return np.zeros_like(context)
    columns = heads.heads * (model.mla.qk_nope_head_dim + model.mla.v_head_dim)
    time = kernels.matrix_ns("bf16", model.mla.kv_lora_rank, columns, context)
    return np.where(context > 0, time, 0.0)


def _knots(first: int, last: int) -> list[int]:
    """Return integers from `first` to at least `last`, each at most a quarter octave (or 1) above the one before."""
    knots = [first]
    while knots[-1] < last or len(knots) < 2:
        knots.append(max(knots[-1] + 1, int(knots[-1] * 2 ** (1 / _KNOTS_PER_OCTAVE))))
    return knots
