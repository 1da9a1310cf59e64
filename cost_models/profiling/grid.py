"""The shapes to measure, coarse grids before fine ones, so that the whole range is covered whenever measuring stops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.library import load_model, model_names

#: Grids up to this level take about a minute: up to five values an axis.
QUICK_LEVEL = 2

_GIB = 2**30
#: The columns of number formats.
_FORMATS = ("dtype", "kv_dtype")


@dataclass(frozen=True, slots=True)
class Shape:
    """Arguments of one kernel call: the cells of its row. The shapes up to each `level` are a full grid, finer by
    level."""

    operator: str
    cells: Mapping[str, int | str]
    level: int

    def number(self, column: str) -> int:
        """The count in `column`."""
        return int(self.cells[column])

    def text(self, column: str) -> str:
        """The word in `column`."""
        return str(self.cells[column])

    def __str__(self) -> str:
        return " ".join(f"{column}={value}" for column, value in self.cells.items())


Axes = Mapping[str, Sequence[int]]
Variant = Mapping[str, int | str]


def levels(count: int) -> list[int]:
    """Return the level of each of `count` positions on an axis: 0 for both ends, 1 for the middle, 2 for the
    quarters..."""
    found = [0] * count
    gaps = [(0, count - 1, 1)]
    while gaps:
        low, high, level = gaps.pop()
        if high - low > 1:
            middle = (low + high) // 2
            found[middle] = level
            gaps += [(low, middle, level + 1), (middle, high, level + 1)]
    return found


def grid_of(
    operator: str, variants: Sequence[Variant], axes: Axes, keep: Callable[[Shape], bool] = lambda shape: True
) -> list[Shape]:
    """Return every variant at every point of the grid over `axes` for which `keep` returns True.

    A point's level is that of its finest coordinate.
    """
    points = list(_points(axes))
    shapes = [Shape(operator, {**variant, **point}, level) for variant in variants for point, level in points]
    return [shape for shape in shapes if keep(shape)]


def coarse_to_fine(shapes: Sequence[Shape]) -> list[Shape]:
    """Return shapes in the order of measuring: by level, shuffled within each, so that half a level covers the whole
    grid, too."""
    by_level: dict[int, list[Shape]] = {}
    for shape in shapes:
        by_level.setdefault(shape.level, []).append(shape)
    return [shape for level in sorted(by_level) for shape in _shuffled(by_level[level])]


def build_grid(operator: str, gpus: int = 1) -> list[Shape]:
    """Return the grid of an operator of the CSV schema, in the order of measuring; the all-reduce is over `gpus`
    GPUs."""
    return coarse_to_fine(_all_reduce(gpus) if operator == "all_reduce" else _GRIDS[operator]())


def select(shapes: Sequence[Shape], dtypes: Collection[str] | None, quick: bool) -> list[Shape]:
    """Return the shapes of number formats in `dtypes` (None: all), and if `quick`, only those of the coarsest levels.

    Operators whose rows have no format are not affected by `dtypes`.
    """
    return [
        shape
        for shape in shapes
        if (not quick or shape.level <= QUICK_LEVEL)
        and (dtypes is None or all(shape.cells[column] in dtypes for column in _FORMATS if column in shape.cells))
    ]


def _points(axes: Axes) -> Iterator[tuple[dict[str, int], int]]:
    ranked = [list(zip(values, levels(len(values)), strict=True)) for values in axes.values()]
    for point in itertools.product(*ranked):
        yield {column: value for column, (value, _) in zip(axes, point, strict=True)}, max(level for _, level in point)


def _shuffled(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the items in random order, always the same, from a stream with the operator's name."""
    stream = np.random.SeedSequence(0, spawn_key=tuple(shapes[0].operator.encode()))
    return [shapes[index] for index in np.random.Generator(np.random.PCG64(stream)).permutation(len(shapes))]


def _powers(first: int, last: int) -> list[int]:
    """Return the powers of two from `first` to `last`."""
    return [2**exponent for exponent in range(first.bit_length() - 1, last.bit_length())]


# --- matrix products ------------------------------------------------------------------------------------------------

#: Tokens of a step: of decode batches, then of chunks up to a long prompt, some of which fill no tile of 64 or 128
#: rows.
_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
#: Widths of layers, whole and split over GPUs.
_WIDTHS = (512, 1024, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 14336, 16384, 28672, 32768)
#: Columns of LM heads, which stay in BF16 and have a row per sampled token: half of Llama 3's, all of it, gpt-oss's.
_LM_HEADS = {"m": _TOKENS[: _TOKENS.index(1024) + 1], "n": (64128, 128256, 201088), "k": (1024, 2048, 4096, 5120, 8192)}


def _gemm() -> list[Shape]:
    variants = [{"dtype": dtype} for dtype in ("bf16", "fp8", "int8")]
    layers = grid_of("gemm", variants, {"m": (*_TOKENS, 32768), "n": _WIDTHS, "k": _WIDTHS}, _is_product)
    return layers + grid_of("gemm", [{"dtype": "bf16"}], _LM_HEADS)


def _is_product(shape: Shape) -> bool:
    """Return False for products of tens of milliseconds, and of up to 16 rows in INT8, which PyTorch does not
    support."""
    m = shape.number("m")
    return m * shape.number("n") * shape.number("k") <= 2**42 and (shape.text("dtype") != "int8" or m > 16)


# --- attention ------------------------------------------------------------------------------------------------------

#: (query heads, KV heads, head_dim) of one GPU: Llama 70B and 8B whole and split, MHA, an odd group, gpt-oss.
_HEADS = (
    (64, 8, 128),
    (32, 8, 128),
    (16, 2, 128),
    (8, 1, 128),
    (4, 1, 128),
    (32, 32, 128),
    (40, 8, 128),
    (64, 8, 64),
    (8, 1, 64),
)
#: Sliding windows of Mistral and of gpt-oss, with their heads.
_WINDOWED = ((32, 8, 128, 4096), (64, 8, 64, 128))


def _attention_variants() -> list[Variant]:
    return [
        {"kv_dtype": kv_dtype, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        for kv_dtype in ("bf16", "fp8")
        for heads, kv_heads, head_dim in _HEADS
    ]


def _prefill_attention() -> list[Shape]:
    variants = [{**variant, "window": 0} for variant in _attention_variants()]
    for heads, kv_heads, head_dim, window in _WINDOWED:
        variants.append(
            {"kv_dtype": "bf16", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
        )
    axes = {
        "batch": (1, 2, 4, 8, 32),
        "tokens": (16, *_powers(64, 2**14)),
        "context": (0, 128, 512, 2048, 8192, 32768, 131072),
    }
    return grid_of("prefill_attention", variants, axes, _is_prefill_step)


def _is_prefill_step(shape: Shape) -> bool:
    """Return whether the new tokens fit a large budget, and the keys and pairs a long prompt."""
    batch, tokens, context = shape.number("batch"), shape.number("tokens"), shape.number("context")
    keys = tokens + context
    return batch * tokens <= 2**15 and batch * keys <= 2**19 and batch * tokens * keys <= 2**28


def _decode_attention() -> list[Shape]:
    axes = {"batch": _powers(1, 512), "context": (16, *_powers(64, 2**17))}
    return grid_of("decode_attention", _attention_variants(), axes, _keys_fit)


def _keys_fit(shape: Shape) -> bool:
    numbers = 2 * shape.number("kv_heads") * shape.number("head_dim")
    return shape.number("batch") * shape.number("context") * numbers * 2 <= 8 * _GIB


# --- elementwise ----------------------------------------------------------------------------------------------------

#: Numbers a token, by kernel: hidden sizes; (heads + KV heads) x 128; FFN widths; vocabularies.
_HIDDEN = {
    "norm": (1024, 2048, 4096, 5120, 8192, 16384),
    "rope": (640, 1280, 2560, 5120, 9216),
    "activation": (1024, 2048, 3584, 7168, 14336, 28672),
    "embedding": (1024, 2048, 4096, 5120, 8192, 16384),
    "sampling": (32000, 128256, 151936, 201088),
}
#: Width of one head of the rotary embedding.
ROPE_DIM = 128
#: Bytes that each kernel reads and writes for each of these numbers. In BF16: the norm adds the residual and keeps the
#: sum (two reads, two writes); RoPE and the embedding read and write once; the activation reads gate and value.
#: Sampling: from BF16 to FP32 (2 + 4), softmax (4 + 4), noise (4), division by it (8 + 4), argmax (4).
_NUMBER_BYTES = {"norm": 8, "rope": 4, "activation": 6, "embedding": 4, "sampling": 34}


def elementwise_bytes(name: str, tokens: int, hidden: int) -> int:
    """Return the bytes that one call moves; RoPE also reads a row of sines and cosines per token."""
    table = 2 * 2 * ROPE_DIM if name == "rope" else 0
    return tokens * (_NUMBER_BYTES[name] * hidden + table)


def _elementwise() -> list[Shape]:
    grids = [
        grid_of("elementwise", [{"name": name}], {"tokens": _elementwise_tokens(name), "hidden": widths})
        for name, widths in _HIDDEN.items()
    ]
    return [_with_bytes(shape) for grid in grids for shape in grid]


def _elementwise_tokens(name: str) -> list[int]:
    return _powers(1, 1024 if name == "sampling" else 2**15)


def _with_bytes(shape: Shape) -> Shape:
    size = elementwise_bytes(shape.text("name"), shape.number("tokens"), shape.number("hidden"))
    return Shape(shape.operator, {**shape.cells, "bytes": size}, shape.level)


# --- experts --------------------------------------------------------------------------------------------------------


def _moe() -> list[Shape]:
    variants = [{"dtype": dtype, **experts} for experts in _expert_layers() for dtype in ("bf16", "fp8")]
    return grid_of("moe", variants, {"tokens": _TOKENS}, _experts_fit)


def _expert_layers() -> list[dict[str, int]]:
    """Return the MoE layers of the shipped models, each once, with the experts whole and split over 2, 4 and 8 GPUs."""
    layers: list[dict[str, int]] = []
    for name in model_names():
        model = load_model(name)
        if model.moe is None:
            continue
        for parts in (1, 2, 4, 8):
            layer = {
                "hidden": model.hidden,
                "width": model.moe.moe_ffn // parts,
                "experts": model.moe.experts,
                "top_k": model.moe.top_k,
            }
            if layer not in layers and model.moe.moe_ffn % parts == 0:
                layers.append(layer)
    return layers


def _experts_fit(shape: Shape) -> bool:
    weights = 3 * shape.number("experts") * shape.number("hidden") * shape.number("width")
    return weights * 2 <= 24 * _GIB


# --- links ----------------------------------------------------------------------------------------------------------


def _all_reduce(gpus: int) -> list[Shape]:
    return grid_of("all_reduce", [{"gpus": gpus}], {"bytes": _powers(2**10, 2**28)})


def _p2p() -> list[Shape]:
    return grid_of("p2p", [{}], {"bytes": _powers(2**12, 2**30)})


_GRIDS: Mapping[str, Callable[[], list[Shape]]] = {
    "gemm": _gemm,
    "prefill_attention": _prefill_attention,
    "decode_attention": _decode_attention,
    "elementwise": _elementwise,
    "moe": _moe,
    "p2p": _p2p,
}
