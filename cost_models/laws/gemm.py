"""Matrix products: the roofline with tiles and waves, times what measured kernels take above it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.files.fields import Fields
from cost_models.laws.curve import Curve, monotone
from cost_models.laws.table import Floats, Table
from cost_models.specs.dtypes import ACTIVATION_BYTES, BITS
from cost_models.specs.gpu import GpuSpec

#: What a kernel takes however little it does: the shortest measured products take 2.5 us on an H100 and an A100.
LAUNCH_NS = 2_000.0
#: Over what the table of a law goes.
AXES = ("tokens", "rows", "columns")
#: The number format of laws that differ in the scales of the same format.
_NUMBERS = {"fp8_block": "fp8"}


def number_format(dtype: str) -> str:
    """The format of the numbers of a law's `dtype`: "fp8_block" are FP8 with a scale a block."""
    return _NUMBERS.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Waves:
    """Division of the arithmetic: tiles of `tokens` x `columns` results, `slots` of them at once.

    `share` is the part of the loss to a last wave with free slots that is seen, since a library chooses among kernels.
    Few tokens take flatter tiles, down to the 16 of the tensor cores' instructions: then the weights' traffic decides,
    which knows no waves.
    """

    tokens: int
    columns: int
    slots: int
    share: float

    def products(self, columns: Floats | int, tokens: Floats) -> Floats:
        """Results (tokens x columns) that the slots have time for until the last tile is done."""
        height = np.minimum(self.tokens, 16 * np.ceil(tokens / 16))
        tiles = np.ceil(tokens / height) * np.ceil(columns / self.columns)
        waves = np.ceil(tiles / self.slots) * self.slots
        products: Floats = (self.share * waves + (1 - self.share) * tiles) * (height * self.columns)
        return products


@dataclass(frozen=True)
class GemmLaw:
    """The time of a product of tokens (M) x rows (K) activations with a rows x columns (N) matrix.

    It is max(bound, base x v): `base` is `launch_ns` + the longer of the arithmetic at the peak rate, in waves of tiles
    if there are `waves`, and of the traffic at the peak bandwidth; v a table over (tokens, rows, columns). As a
    function of the tokens of one matrix it is tabulated at whole numbers of tiles and the tokens right after, made
    non-decreasing, and linear between those.
    """

    gpu: GpuSpec
    dtype: str
    waves: Waves | None
    table: Table
    launch_ns: float = LAUNCH_NS

    def ns(self, rows: int, columns: int, tokens: Floats, bits: float | None = None) -> Floats:
        """Nanoseconds for each of `tokens` (n,).

        `bits` are those of a stored weight, scales included, where only the weights are quantised: they are read as
        such and multiplied in the law's format.
        """
        stored = BITS[number_format(self.dtype)] if bits is None else bits
        return self._curve(rows, columns, stored).ns(tokens)

    def base_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """The physical base: what the table multiplies."""
        found: Floats = self.launch_ns + np.maximum(
            self._arithmetic_ns(rows, columns, tokens), self._traffic_ns(rows, columns, tokens, bits)
        )
        return found

    def bound_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """The longer of the arithmetic at the peak rate and of reading the weights; activations may be in L2."""
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
            "waves": None if self.waves is None else asdict(self.waves),
            "table": self.table.to_json(),
        }

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec, dtype: str) -> GemmLaw:
        """The law that `to_json` described. Raises CostModelError if it is none."""
        waves, table = data.section("waves"), data.required_section("table")
        launch = data.number("launch_ns", zero=True)
        law = GemmLaw(gpu, dtype, None if waves is None else _waves(waves), Table.from_json(table, AXES), launch)
        data.finish()
        return law

    @property
    def _flops(self) -> float:
        """Peak FLOPs a nanosecond."""
        return self.gpu.peak(number_format(self.dtype)) / 1e9

    @property
    def _bandwidth(self) -> float:
        """Peak bytes a nanosecond."""
        return self.gpu.hbm_bandwidth / 1e9

    def _arithmetic_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats) -> Floats:
        products = tokens * columns if self.waves is None else self.waves.products(columns, tokens)
        time: Floats = products * (rows * (2 / self._flops))
        return time

    def _traffic_ns(self, rows: Floats | int, columns: Floats | int, tokens: Floats, bits: float) -> Floats:
        """Weights, activations in the law's format and results, once each."""
        narrow = BITS[number_format(self.dtype)] / 8
        moved = rows * columns * (bits / 8) + tokens * (rows * narrow + columns * ACTIVATION_BYTES)
        time: Floats = moved * (1 / self._bandwidth)
        return time

    @cached_property
    def _knots(self) -> Floats:
        """Tokens at which a matrix is tabulated: the table's knots, few tokens, and both sides of every tile's edge."""
        axis = self.table.knots[self.table.names.index("tokens")]
        fine = np.arange(0, min(512.0, axis[-1]), 16)
        tiles = np.arange(0, axis[-1], 128)
        edges = np.concatenate([fine, fine + 1, tiles, tiles + 1, np.arange(1, min(17.0, axis[-1]))])
        knots: Floats = np.unique(np.concatenate([axis, edges[edges >= axis[0]]]))
        return knots if len(knots) > 1 else np.append(knots, knots[-1] + 1)

    def _curve(self, rows: int, columns: int, bits: float) -> Curve:
        """The time of one matrix over the tokens."""
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
