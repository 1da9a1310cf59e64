"""Matrix products: the roofline with tiles and waves, times the ratio of measured times to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cost_models.files.fields import Fields
from cost_models.laws.curve import Curve, monotone
from cost_models.laws.table import Floats, Table
from cost_models.specs.dtypes import ACTIVATION_BYTES, BITS
from cost_models.specs.gpu import GpuSpec

#: Least time of a kernel: the shortest measured products take 2.5 us on an H100 and an A100.
LAUNCH_NS = 2_000.0
#: The axes of the table of a law.
AXES = ("tokens", "rows", "columns")
#: Number formats of the laws whose names differ from the format by their scales.
_NUMBERS = {"fp8_block": "fp8"}


def number_format(dtype: str) -> str:
    """Return the number format of a law's `dtype`: that of "fp8_block" is FP8, with a scale for each block."""
    return _NUMBERS.get(dtype, dtype)


class Waves(NamedTuple):
    """Division of the arithmetic: tiles of `tokens` x `columns` results, `slots` of them at once.

    The last wave may leave slots free; `share` is the part of this loss that is observed, since a library chooses among
    kernels. For few tokens tiles are flatter, down to the 16 rows of the tensor cores' instructions: then the time is
    that of reading the weights, which does not depend on waves.
    """

    tokens: int
    columns: int
    slots: int
    share: float

    def products(self, columns: Floats | int, tokens: Floats) -> Floats:
        """Return the results (tokens x columns) for which the slots have time until the last tile is done."""
        height = np.minimum(self.tokens, 16 * np.ceil(tokens / 16))
        tiles = np.ceil(tokens / height) * np.ceil(columns / self.columns)
        waves = np.ceil(tiles / self.slots) * self.slots
        products: Floats = (self.share * waves + (1 - self.share) * tiles) * (height * self.columns)
        return products


@dataclass(frozen=True)
class GemmLaw:
    """Time of a product of tokens (M) x rows (K) activations with a rows x columns (N) matrix.

    It is max(bound, base x v). `base` is `launch_ns` + the longer of the arithmetic at the peak rate, in waves of tiles
    if `waves` is given, and of the memory traffic at the peak bandwidth; v is a table over (tokens, rows, columns). For
    each matrix the time is computed at whole numbers of tiles and the next number of tokens, made non-decreasing, and
    linear between these.
    """

    gpu: GpuSpec
    dtype: str
    waves: Waves | None
    table: Table
    launch_ns: float = LAUNCH_NS

    def ns(self, rows: int, columns: int, tokens: Floats, bits: float | None = None) -> Floats:
        """Return the ns for each of `tokens` (n,).

        `bits` is the number of bits of a stored weight, scales included, if only the weights are quantised: they are
        read in this width, and multiplied in the law's format.
        """
        stored = BITS[number_format(self.dtype)] if bits is None else bits
        return self._curve(rows, columns, stored).ns(tokens)

    def base_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """Return the physical base, which the table multiplies."""
        found: Floats = self.launch_ns + np.maximum(
            self._arithmetic_ns(rows, columns, tokens), self._traffic_ns(rows, columns, tokens, bits)
        )
        return found

    def bound_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """Return the longer of the arithmetic at the peak rate and of reading the weights; activations may be in L2."""
        arithmetic = tokens * rows * columns * (2 / self._flops)
        found: Floats = np.maximum(arithmetic, rows * columns * (bits / 8 / self._bandwidth))
        return found

    def outside(self, rows: int, columns: int, tokens: float) -> list[str]:
        """Return the values outside the measured ranges, as texts for a warning."""
        return self.table.outside(rows=rows, columns=columns, tokens=tokens)

    def to_json(self) -> dict[str, Any]:
        """The law's parameters."""
        return {
            "launch_ns": self.launch_ns,
            "waves": None if self.waves is None else self.waves._asdict(),
            "table": self.table.to_json(),
        }

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec, dtype: str) -> GemmLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        waves, table = data.section("waves"), data.required_section("table")
        launch = data.number("launch_ns", zero=True)
        law = GemmLaw(gpu, dtype, None if waves is None else _waves(waves), Table.from_json(table, AXES), launch)
        data.finish()
        return law

    @property
    def _flops(self) -> float:
        """Return the peak FLOPs per nanosecond."""
        return self.gpu.peak(number_format(self.dtype)) / 1e9

    @property
    def _bandwidth(self) -> float:
        """Return the peak bytes per nanosecond."""
        return self.gpu.hbm_bandwidth / 1e9

    def _arithmetic_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats) -> Floats:
        products = tokens * columns if self.waves is None else self.waves.products(columns, tokens)
        time: Floats = products * (rows * (2 / self._flops))
        return time

    def _traffic_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """Return the bytes of the weights, of the activations in the law's format, and of the results, each counted
        once."""
        narrow = BITS[number_format(self.dtype)] / 8
        moved = rows * columns * (bits / 8) + tokens * (rows * narrow + columns * ACTIVATION_BYTES)
        time: Floats = moved * (1 / self._bandwidth)
        return time

    @cached_property
    def _knots(self) -> Floats:
        """Return the tokens at which the time of a matrix is computed: the table's knots, few tokens, both sides of
        each tile's end."""
        axis = self.table.knots[self.table.names.index("tokens")]
        fine = np.arange(0, min(512.0, axis[-1]), 16)
        tiles = np.arange(0, axis[-1], 128)
        edges = np.concatenate([fine, fine + 1, tiles, tiles + 1, np.arange(1, min(17.0, axis[-1]))])
        knots = np.array(sorted({*axis.tolist(), *edges[edges >= axis[0]].tolist()}))
        return knots if len(knots) > 1 else np.append(knots, knots[-1] + 1)

    def _curve(self, rows: int, columns: int, bits: float) -> Curve:
        """Return the time of one matrix as a function of the tokens."""
        knots = self._knots
        above = self.table.fix(rows=rows, columns=columns).at(knots)
        times = np.maximum(self.base_ns(rows, columns, knots, bits) * above, self.bound_ns(rows, columns, knots, bits))
        arithmetic = 2 * rows * columns / self._flops
        moved = rows * BITS[number_format(self.dtype)] / 8 + columns * ACTIVATION_BYTES
        slope = max(float(above[-1]) * max(arithmetic, moved / self._bandwidth), arithmetic)
        return Curve(knots, monotone(times), slope)


def _waves(data: Fields) -> Waves:
    waves = Waves(
        tokens=data.integer("tokens"),
        columns=data.integer("columns"),
        slots=data.integer("slots"),
        share=data.number("share", most=1.0, zero=True),
    )
    data.finish()
    return waves
