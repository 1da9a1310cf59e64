"""Kernels of a GPU from a calibrated file, and the reader of such files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cost_models.errors import CostModelError, shown
from cost_models.files.documents import read_json
from cost_models.files.fields import Fields
from cost_models.kernels.contract import DecodeCost, Kernels, PrefillCost
from cost_models.kernels.estimated import EstimatedKernels
from cost_models.kernels.files import calibrated_path, shipped_path
from cost_models.laws.all_to_all import AllToAllLaw
from cost_models.laws.attention import AttentionLaws
from cost_models.laws.communication import AllReduceLaw, P2pLaw
from cost_models.laws.elementwise import ElementwiseLaw
from cost_models.laws.gemm import GemmLaw
from cost_models.laws.moe import ExpertsLaw
from cost_models.roofline.operands import Experts, Floats, Heads
from cost_models.specs.dtypes import BITS
from cost_models.specs.gpu import GpuSpec

_T = TypeVar("_T")

#: Formats of laws that are used for other formats: FP16 is as fast as BF16; vLLM's FP8 checkpoints have scales by
#: tensor or by channel.
_SAME = {"fp16": "bf16"}


class Laws(Mapping[str, _T]):
    """Laws of an operator by the name of each, read from a file on first use: a model has one or two number formats.

    Raises CostModelError for a law that is not valid.
    """

    def __init__(
        self, place: str, entries: Mapping[str, Any], gpu: GpuSpec, read: Callable[[Fields, GpuSpec, str], _T]
    ) -> None:
        self._place, self._entries, self._gpu, self._read = place, entries, gpu, read
        self._found: dict[str, _T] = {}

    def __getitem__(self, name: str) -> _T:
        if name not in self._found:
            place, entry = f"{self._place}.{name}", self._entries[name]
            try:
                self._found[name] = self._read(Fields(place, entry).required_section("law"), self._gpu, name)
            except ValueError as error:
                raise CostModelError(_placed(error, place)) from None
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class CalibratedKernels(NamedTuple):
    """Laws fitted to measured kernels; operators that were not measured are estimated.

    `gemm` and `experts` are laws by number format, `p2p` by link; `all_to_all` is the law of NCCL, vLLM's default.
    Weights in a format without a law are read in their width and multiplied as BF16.
    """

    gpu: GpuSpec
    estimates: EstimatedKernels
    gemm: Mapping[str, GemmLaw]
    experts: Mapping[str, ExpertsLaw]
    attention: AttentionLaws | None
    all_reduce: AllReduceLaw | None
    elementwise: ElementwiseLaw | None
    all_to_all: AllToAllLaw | None
    p2p: Mapping[str, P2pLaw]
    measured_on: str
    source: str

    def matrix_ns(self, dtype: str, rows: int, columns: int, tokens: Floats) -> Floats:
        """Return the time to multiply activations with a matrix, in ns."""
        law, bits = self._gemm_law(dtype)
        if law is None:
            return self.estimates.matrix_ns(dtype, rows, columns, tokens)
        return law.ns(rows, columns, tokens, bits)

    def experts_ns(self, experts: Experts, tokens: Floats, groups: int = 1) -> Floats:
        """Return the time of the routed experts of one layer, in ns."""
        law = self._experts_law(experts.dtype)
        if law is None:
            return self.estimates.experts_ns(experts, tokens, groups)
        return law.ns(experts, tokens, expert_parallel=groups)

    def elementwise_ns(self, bytes_each: float, count: Floats) -> Floats:
        """Return the time of a memory-bound kernel, in ns."""
        if self.elementwise is None:
            return self.estimates.elementwise_ns(bytes_each, count)
        return self.elementwise.ns(bytes_each, count)

    def all_reduce_ns(self, gpus: int, size: Floats) -> Floats:
        """Return the time of an all-reduce, in ns."""
        if self.all_reduce is None:
            return self.estimates.all_reduce_ns(gpus, size)
        return self.all_reduce.ns(gpus, size)

    def all_to_all_ns(self, phase: str, gpus: int, copies: Floats, size: Floats) -> Floats:
        """Return the time of an exchange of tokens between the experts' GPUs, in ns."""
        if self.all_to_all is None:
            return self.estimates.all_to_all_ns(phase, gpus, copies, size)
        return self.all_to_all.copies_ns(gpus, copies, size, phase)

    def send_ns(self, link: str, size: Floats) -> Floats:
        """Return the time of a message from one GPU to another, in ns."""
        return self.p2p[link].ns(size) if link in self.p2p else self.estimates.send_ns(link, size)

    def decode_attention(self, heads: Heads, decodes: Floats) -> DecodeCost:
        """Return the terms of decode attention, by number of decodes."""
        if self.attention is None:
            return self.estimates.decode_attention(heads, decodes)
        return self.attention.decode_attention(heads, decodes)

    def prefill_attention(self, heads: Heads) -> PrefillCost:
        """Return the cost of prefill attention."""
        if self.attention is None:
            return self.estimates.prefill_attention(heads)
        return self.attention.prefill_attention(heads)

    def matrix_outside(self, dtype: str, rows: int, columns: int, tokens: int) -> list[str]:
        """Return the ranges of products outside the measured ones, as texts for a warning."""
        law, bits = self._gemm_law(dtype)
        if law is None:
            return [f"matrices in {dtype} (estimated)"]
        found = [f"matrices in {dtype} (calibrated as bf16 with narrower weights)"] if bits is not None else []
        return found + [f"matrices with {text}" for text in law.outside(rows, columns, tokens)]

    def experts_outside(self, experts: Experts, tokens: int, groups: int = 1) -> list[str]:
        """Return the ranges of routed experts outside the measured ones, as texts for a warning."""
        law = self._experts_law(experts.dtype)
        if law is None:
            return [f"experts in {experts.dtype} (estimated)"]
        return [f"experts with {text}" for text in law.outside(experts, tokens, groups)]

    def attention_outside(self, heads: Heads) -> list[str]:
        """Return the ranges of attention outside the measured ones, as texts for a warning."""
        return ["attention (estimated)"] if self.attention is None else self.attention.outside(heads)

    def all_reduce_outside(self, gpus: int, size: int) -> list[str]:
        """Return the ranges of all-reduces outside the measured ones, as texts for a warning."""
        if self.all_reduce is None:
            return ["all-reduce (estimated)"]
        return [f"all-reduce with {text}" for text in self.all_reduce.outside(gpus, size)]

    def all_to_all_outside(self, phase: str, gpus: int, size: float) -> list[str]:
        """Return the ranges of an all-to-all phase outside the measured ones, as texts for a warning."""
        if self.all_to_all is None:
            return ["all-to-all (estimated)"]
        found = self.all_to_all.above[phase].outside(gpus=gpus, bytes=size)
        return [f"all-to-all with {text}" for text in found]

    def send_outside(self, link: str, size: float) -> list[str]:
        """Return the ranges of a message outside the measured ones, as texts for a warning."""
        if link not in self.p2p:
            return [f"sends over the {link} (estimated)"]
        return [f"sends over the {link} with {text}" for text in self.p2p[link].outside(size)]

    def _gemm_law(self, dtype: str) -> tuple[GemmLaw | None, float | None]:
        """Return the law for weights in a format, and the bits of a stored weight if it is narrower than the law's
        format."""
        own = self.gemm.get(_SAME.get(dtype, dtype))
        if own is not None:
            return own, None
        return self.gemm.get("bf16"), BITS[dtype]

    def _experts_law(self, dtype: str) -> ExpertsLaw | None:
        return self.experts.get(_SAME.get(dtype, dtype))


def kernels_of(gpu: GpuSpec, calibration: str = "auto") -> Kernels:
    """Return the kernels of a GPU.

    `calibration` is the source: "auto", the user's own calibrated file, else the shipped one, else estimates;
    "shipped", the shipped file, else estimates; "none", estimates; or the path of a calibrated file. Raises
    CostModelError if the file cannot be read, is not a calibrated file, or belongs to another GPU.
    """
    if calibration == "none":
        return EstimatedKernels(gpu)
    if calibration in ("auto", "shipped"):
        path = calibrated_path(gpu) if calibration == "auto" else shipped_path(gpu)
        return _load(path, path.stat().st_mtime_ns, gpu) if path.is_file() else EstimatedKernels(gpu)
    path = Path(calibration)
    try:
        return _load(path, path.stat().st_mtime_ns, gpu)
    except OSError as error:
        raise CostModelError(f"calibration {calibration}: {error.strerror}") from None


@lru_cache(maxsize=8)
def _document(path: Path, changed: int) -> Mapping[str, Any]:
    """Return the document of a file; `changed` is the time of its last change, so that a changed file is read again."""
    document = read_json(path)
    if not isinstance(document, Mapping) or not isinstance(document.get("operators"), Mapping):
        raise CostModelError(f"{path}: not a calibrated file: no operators")
    return document


def _load(path: Path, changed: int, gpu: GpuSpec) -> CalibratedKernels:
    document = _document(path, changed)
    if document.get("gpu") not in (gpu.name, gpu.calibrated_as):
        raise CostModelError(f"{path}: is of {shown(document.get('gpu'))}, not of {gpu.name}")
    operators: Mapping[str, Any] = document["operators"]

    def laws(family: str, read: Callable[[Fields, GpuSpec, str], _T]) -> Laws[_T]:
        entries = operators.get(family, {})
        if not isinstance(entries, Mapping):
            raise CostModelError(f"{path}: operators.{family}: expected a mapping, found {shown(entries)}")
        return Laws(f"{path}: operators.{family}", entries, gpu, read)

    def first(found: Mapping[str, _T]) -> _T | None:
        return next(iter(found.values()), None)

    return CalibratedKernels(
        gpu,
        EstimatedKernels(gpu),
        gemm=laws("gemm", GemmLaw.from_json),
        experts=laws("moe", _experts_law),
        attention=first(laws("attention", lambda law, gpu, name: AttentionLaws.from_json(law, gpu))),
        all_reduce=first(laws("all_reduce", lambda law, gpu, name: AllReduceLaw.from_json(law, gpu))),
        elementwise=first(laws("elementwise", lambda law, gpu, name: ElementwiseLaw.from_json(law, gpu))),
        all_to_all=laws("all_to_all", lambda law, gpu, name: AllToAllLaw.from_json(law, gpu)).get("nccl"),
        p2p=laws("p2p", _p2p_law),
        measured_on=str(document["gpu"]),
        source=str(path),
    )


def _experts_law(law: Fields, gpu: GpuSpec, name: str) -> ExpertsLaw:
    return ExpertsLaw.from_json(law, gpu)


def _p2p_law(law: Fields, gpu: GpuSpec, name: str) -> P2pLaw:
    return P2pLaw.from_json(law)


def _placed(error: ValueError, place: str) -> str:
    """Return the text of an error about a law, with the place of the law if the text does not have it."""
    return str(error) if str(error).startswith(place) else f"{place}: {error}"
