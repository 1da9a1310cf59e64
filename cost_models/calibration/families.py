"""The operators that are calibrated, with the sources of their rows and their fits. A new operator is an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from cost_models.calibration.all_to_all import fit_all_to_all
from cost_models.calibration.attention import calibrate_attention
from cost_models.calibration.communication import fit_all_reduce, fit_p2p
from cost_models.calibration.elementwise import fit_elementwise
from cost_models.calibration.fitted import Fitted
from cost_models.calibration.gemm import fit_gemm
from cost_models.calibration.moe import fit_experts
from cost_models.calibration.read_attention import SOURCES, own_chunks, own_rows, read_attention
from cost_models.calibration.read_communication import read_all_reduce
from cost_models.calibration.read_gemm import read_gemm
from cost_models.calibration.read_moe import read_all_to_all, read_experts
from cost_models.specs.gpu import GpuSpec

#: Function that fits a group of rows, given the GPU. Raises TooFewRowsError for too few rows.
Fit = Callable[[GpuSpec], Fitted]


@dataclass(frozen=True, slots=True)
class Sources:
    """The measurements of one GPU.

    `root` is the folder `systems/data` of aiconfigurator-core and `folder` the GPU's folder in it; both are None
    without the package. `files` are the rows of CSV files by operator (see `measurements`).
    """

    root: Path | None
    folder: str | None
    files: Mapping[str, pd.DataFrame]

    def packaged(self, read: Callable[[Path, str], dict[str, tuple[pd.DataFrame, str]]]) -> dict[str, _Rows]:
        """Return the rows that `read` finds in the package, by group; none without the package."""
        if self.root is None or self.folder is None:
            return {}
        return {group: _Rows(*found) for group, found in read(self.root, self.folder).items()}

    def own(self, operator: str, column: str | None = None, group: str = "") -> dict[str, _Rows]:
        """Return the rows of files, by the values of `column`, or all as one `group`."""
        if operator not in self.files:
            return {}
        rows = self.files[operator]
        if column is None or column not in rows:
            return {group: _Rows(rows, _named(rows))}
        return {str(name): _Rows(part, _named(part)) for name, part in rows.groupby(column)}


class _Rows(NamedTuple):
    rows: pd.DataFrame
    source: str


class Family(NamedTuple):
    """An operator by its name in calibrated files; `fits` returns the fit of each of its groups (formats, links)."""

    name: str
    fits: Callable[[Sources], dict[str, Fit]]


def _gemm(sources: Sources) -> dict[str, Fit]:
    groups = sources.packaged(read_gemm) | sources.own("gemm", "dtype")
    return {
        dtype: partial(_fit_gemm, rows=found.rows, dtype=dtype, source=found.source) for dtype, found in groups.items()
    }


def _fit_gemm(gpu: GpuSpec, rows: pd.DataFrame, dtype: str, source: str) -> Fitted:
    return fit_gemm(rows, gpu, dtype, source)


def _all_reduce(sources: Sources) -> dict[str, Fit]:
    return _plain(sources.packaged(read_all_reduce) | sources.own("all_reduce", group="bf16"), fit_all_reduce)


def _elementwise(sources: Sources) -> dict[str, Fit]:
    return _plain(sources.own("elementwise", group="bf16"), fit_elementwise)


def _p2p(sources: Sources) -> dict[str, Fit]:
    return _plain(sources.own("p2p", "link", group="node"), fit_p2p)


def _plain(groups: Mapping[str, _Rows], fit: Callable[[pd.DataFrame, GpuSpec, str], Fitted]) -> dict[str, Fit]:
    def bound(found: _Rows) -> Fit:
        return lambda gpu: fit(found.rows, gpu, found.source)

    return {group: bound(found) for group, found in groups.items()}


def _named(rows: pd.DataFrame) -> str:
    """Return the origin of the rows, from their own columns."""
    return "; ".join(sorted({str(source) for source in rows["source"]}))


def _attention(sources: Sources) -> dict[str, Fit]:
    """Return one group: laws of all heads and formats are fitted together."""
    packaged = None
    if sources.root is not None and sources.folder in SOURCES:
        packaged = read_attention(sources.root, sources.folder)

    def fit(gpu: GpuSpec) -> Fitted:
        rows = own_rows(sources.files, packaged)
        assert rows is not None
        return calibrate_attention(rows, own_chunks(sources.files), gpu)

    measured = packaged is not None or {"decode_attention", "prefill_attention"} & set(sources.files)
    return {"all": fit} if measured else {}


def _moe(sources: Sources) -> dict[str, Fit]:
    if sources.root is None or sources.folder is None:
        return {}

    def bound(dtype: str, rows: pd.DataFrame, source: str) -> Fit:
        return lambda gpu: fit_experts(rows, gpu, dtype, source)

    return {key: bound(*found) for key, found in read_experts(sources.root, sources.folder).items()}


def _all_to_all(sources: Sources) -> dict[str, Fit]:
    if sources.root is None or sources.folder is None:
        return {}

    def bound(copy_bytes: float, rows: pd.DataFrame, source: str) -> Fit:
        return lambda gpu: fit_all_to_all(rows, gpu, copy_bytes, source)

    return {key: bound(*found) for key, found in read_all_to_all(sources.root, sources.folder).items()}


FAMILIES = (
    Family("gemm", _gemm),
    Family("elementwise", _elementwise),
    Family("all_reduce", _all_reduce),
    Family("p2p", _p2p),
    Family("attention", _attention),
    Family("moe", _moe),
    Family("all_to_all", _all_to_all),
)
