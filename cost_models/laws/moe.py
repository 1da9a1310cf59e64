"""The fused kernels of a mixture of experts: two grouped products, activation, sorting and the sum over experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.routing import UNIFORM, Load, Routing, load
from cost_models.laws.table import Table
from cost_models.laws.values import read_knots, read_rows
from cost_models.roofline.operands import Experts, Floats
from cost_models.specs.dtypes import ACTIVATION_BYTES, BITS
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
#: Weights of the dimensions in the distance of two shapes, per octave: hidden size, width, experts of a GPU, top_k,
#: GPUs that share the experts, and alignment. Kernels on partial tiles or unaligned rows take up to twice as long, so
#: that alignment has the largest weight. The values were found by leaving out whole models on H100 and A100.
_OCTAVES = (1.0, 1.0, 1.0, 1.0, 0.5, 2.0)
#: Widths that are a multiple of this count as fully aligned: it is the tile of the grouped product.
_ALIGNED = 64
#: Squared distance (in octaves) below which two shapes count as equal.
_NEAR = 0.01
#: Between knots of tokens time is linear: four knots an octave, up to 131,072.
_KNOTS_PER_OCTAVE, _OCTAVES_OF_TOKENS = 4, 17


class Shape(NamedTuple):
    """The routed experts of a measured layer: `experts` is the number on all `expert_parallel` GPUs together."""

    hidden: int
    width: int
    experts: int
    top_k: int
    expert_parallel: int

    @property
    def place(self) -> tuple[float, ...]:
        """Return the coordinates of the shape for distances, in weighted octaves."""
        aligned = min(_ALIGNED, self.width & -self.width)
        local = self.experts / self.expert_parallel
        octaves = (self.hidden, self.width, local, self.top_k, self.expert_parallel, aligned)
        return tuple(weight * math.log2(value) for weight, value in zip(_OCTAVES, octaves, strict=True))


@dataclass(frozen=True, slots=True)
class ExpertsLaw:
    """Time = base x v, where v is the ratio of measured times to a physical base.

    base = launch + max(weights of the experts in use / HBM bandwidth, FLOPs / peak) + activations / HBM bandwidth. For
    a measured shape v is a curve over the tokens. For another shape it is the mean of all curves, weighted by the
    inverse sixth power of their distance in octaves (Shepard's interpolation): a measured shape has its own curve, and
    far from all of them v is about their mean, so that the law extrapolates as the base does.

    `dtype` is the format of the weights; `launch_ns` is the shortest measured call; `tokens` (k,) are the knots of the
    curves, `shapes` (n) the measured shapes, and `curves` (n, k) their curves.
    """

    gpu: GpuSpec
    dtype: str
    launch_ns: float
    tokens: Floats
    shapes: tuple[Shape, ...]
    curves: Floats

    def __post_init__(self) -> None:
        if self.curves.shape != (len(self.shapes), len(self.tokens)) or not self.shapes:
            sizes = f"{len(self.shapes)} shapes, {len(self.tokens)} knots"
            raise CostModelError(f"experts in {self.dtype}: {sizes} do not fit curves {self.curves.shape}")

    def ns(self, experts: Experts, tokens: Floats, routing: Routing = UNIFORM, expert_parallel: int = 1) -> Floats:
        """Return the ns for `tokens` >= 1, (n,), of the busiest of `expert_parallel` GPUs that share `experts`.

        The time is at least the bound (`bound_ns`) at any number of tokens; with a power law, at the knots between
        which it is linear. Raises CostModelError if the GPUs cannot share the experts.
        """
        knots = _knots(self.tokens)
        times = np.maximum.accumulate(self._at(experts, knots, routing, expert_parallel))
        slope = (times[-1] - times[-2]) / (knots[-1] - knots[-2])
        between: Floats = np.interp(tokens, knots, times) + np.maximum(0.0, tokens - knots[-1]) * slope
        if routing.exponent:
            return between
        # The number of experts in use is concave in the tokens: straight lines between knots might be below the bound.
        return np.maximum(between, bound_ns(self.gpu, experts, load(experts, tokens, expert_parallel, routing)))

    def outside(self, experts: Experts, tokens: float, expert_parallel: int = 1) -> list[str]:
        """Return the values outside the measured ranges, as texts for a warning."""
        asked = Shape(experts.hidden, experts.width, experts.experts, experts.top_k, expert_parallel)
        found = []
        for name, value, known in zip(Shape._fields, asked, zip(*self.shapes, strict=True), strict=True):
            if not min(known) <= value <= max(known):
                found.append(f"{name} {value:g} (calibrated {min(known):g} to {max(known):g})")
        if not self.tokens[0] <= tokens <= self.tokens[-1]:
            found.append(f"tokens {tokens:g} (calibrated {self.tokens[0]:g} to {self.tokens[-1]:g})")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, with curves of four significant digits."""
        return {
            "dtype": self.dtype,
            "launch_ns": round(self.launch_ns),
            "tokens": self.tokens.tolist(),
            "shapes": [list(shape) for shape in self.shapes],
            "curves": [[float(f"{value:.4g}") for value in curve] for curve in self.curves.tolist()],
        }

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec) -> ExpertsLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        tokens = read_knots(data, "tokens")
        law = ExpertsLaw(
            gpu,
            data.text("dtype"),
            data.number("launch_ns", zero=True),
            tokens,
            tuple(Shape(*shape) for shape in read_rows(data, "shapes", len(Shape._fields), whole=True)),
            np.array(read_rows(data, "curves", len(tokens)), float),
        )
        data.finish()
        return law

    def _at(self, experts: Experts, tokens: Floats, routing: Routing, expert_parallel: int) -> Floats:
        """Return the time at each of a few `tokens`."""
        work = load(experts, tokens, expert_parallel, routing)
        shape = Shape(experts.hidden, experts.width, experts.experts, experts.top_k, expert_parallel)
        above = Table(("tokens",), (self.tokens,), self._curve(shape)).at(tokens)
        time = base_ns(self.gpu, experts, tokens, work, self.launch_ns) * above
        return np.maximum(time, bound_ns(self.gpu, experts, work))

    def _curve(self, shape: Shape) -> Floats:
        """Return v at the knots, for a shape."""
        places = np.array([known.place for known in self.shapes]) - np.array(shape.place)
        near = 1 / ((places * places).sum(axis=1) + _NEAR)
        weight = near * near * near
        curve: Floats = (weight[:, None] * self.curves).sum(axis=0) / weight.sum()
        return curve


def base_ns(gpu: GpuSpec, experts: Experts, tokens: Floats, work: Load, launch_ns: float) -> Floats:
    """Return the base: a launch, the bound, and the activations of all pairs, also of experts on other GPUs, at the HBM
    bandwidth.

    Each pair's rows are written and read once: the products' results of `hidden` and (`matrices` - 1) x `width`
    numbers, and the activation's of `width`.
    """
    width = 2 * experts.matrices * experts.width
    activations = tokens * (experts.top_k * ACTIVATION_BYTES * (2 * experts.hidden + width))
    return launch_ns + bound_ns(gpu, experts, work) + activations / (gpu.hbm_bandwidth / _SECOND)


def bound_ns(gpu: GpuSpec, experts: Experts, work: Load) -> Floats:
    """Return the longer of reading the experts in use once and of the pairs' FLOPs, at the peaks."""
    memory = work.touched * (experts.weights * BITS[experts.dtype] / 8 / (gpu.hbm_bandwidth / _SECOND))
    compute = work.pairs * (2 * experts.weights / (gpu.peak(experts.dtype) / _SECOND))
    return np.maximum(memory, compute)


def _knots(tokens: Floats) -> Floats:
    """Return integers from 1 on, at most a quarter octave (or 1) apart, including powers of two and the measured
    `tokens`."""
    octaves = range(_KNOTS_PER_OCTAVE * _OCTAVES_OF_TOKENS + 1)
    grid = {float(round(2 ** (step / _KNOTS_PER_OCTAVE))) for step in octaves}
    return np.array(sorted(grid | set(tokens.tolist())))
