"""A line of a CSV of speculative decoding, as it stands there: one metric of one run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.study.validation.cells import Cells, NotSimulatedError

#: Kinds of metrics, by a pattern of how they are called; and what makes a metric another one that is not compared.
_METRICS = {
    "acceptance_length": re.compile(r"accept(ance|ed) length|tokens per step"),
    "tpot_mean_ms": re.compile(r"tpot|time per output token"),
    "output_tok_s": re.compile(r"output (tok(en)?s?/s|(token )?throughput)"),
    "decode_tok_s": re.compile(r"decode tok(en)?s?/s"),
    "tpot_speed_up": re.compile(r"speed-?up"),
}
_ANOTHER = re.compile(r"\bp\d\d|gain|ratio|reduction|improvement|share")
_UNITS = {
    "tpot_mean_ms": ("", "ms"),
    "output_tok_s": ("", "tok/s", "tokens/s"),
    "decode_tok_s": ("", "tok/s", "tokens/s"),
}
_PLAIN = re.compile(r"vanilla|normal decoding|no speculation|baseline")
#: The number of `1.83 (of 4)`, `2.1x` and `1.26x tps/user`.
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)x?(?:\s*\(.*\)|\s+tps/user)?")
_WHOLE = re.compile(r"\d+(\.0)?")


@dataclass(frozen=True, slots=True)
class Line:
    """`metric` is its kind, empty if it is not compared; `drafts` is k, where that is a number."""

    cells: Cells
    metric: str
    method: str
    drafts: int | None

    @property
    def plain(self) -> bool:
        """Is it of a run without speculation?"""
        return bool(_PLAIN.search(self.method.lower())) or self.drafts == 0

    def text(self, name: str) -> str:
        """What stands in a column."""
        return self.cells.text(name) or ""

    def number(self, name: str) -> float | None:
        """The number in a column; None if it is empty or holds something else, such as a range."""
        found = _NUMBER.fullmatch(self.text(name))
        return float(found[1]) if found else None

    @property
    def clients(self) -> int | None:
        """How many were served at a time, where that is a number."""
        text = self.text("batch_or_concurrency")
        return self.cells.count("batch_or_concurrency") if _WHOLE.fullmatch(text) else None

    @property
    def deployment(self) -> tuple[str, ...]:
        """What rows with the same baseline have alike."""
        return tuple(self.text(name) for name in ("source", "model", "engine", "batch_or_concurrency"))

    @property
    def series(self) -> tuple[str, ...]:
        """What rows of one run have alike. The GPU is not in it: acceptance does not depend on it."""
        alike = ("source", "model", "draft_or_method", "k", "dataset")
        return tuple(self.text(name).lower() for name in alike)

    def measured(self, baseline: float | None) -> dict[str, float]:
        """The metrics of the row: its own, that of the run without speculation, and the speed-up between the two.

        Raises NotSimulatedError for a metric that is not compared, and a value that is none.
        """
        value = self.number("value")
        if not self.metric:
            raise NotSimulatedError(f"metric {self.text('metric')!r} is not compared")
        if value is None or value <= 0:
            raise NotSimulatedError(f"value {self.text('value')!r} is no number above 0")
        if self.text("unit") not in _UNITS.get(self.metric, (self.text("unit"),)):
            raise NotSimulatedError(f"unit {self.text('unit')!r} of {self.text('metric')} is not read")
        if self.metric == "acceptance_length":
            ratio = self.number("ratio_as_reported")
            return {self.metric: value} | ({} if ratio is None else {"tpot_speed_up": ratio})
        if self.plain or not baseline or self.metric == "tpot_speed_up":
            return self._own(value)
        (name, own), (_, other) = (next(iter(self._own(each).items())) for each in (value, baseline))
        faster = {"tpot_speed_up": other / own} if name == "tpot_mean_ms" else {"output_speed_up": own / other}
        return {name: own, f"plain_{name}": other} | faster

    def _own(self, value: float) -> dict[str, float]:
        """The metric; a rate of decodes is a time between a client's tokens, of whom there are so many."""
        if self.metric == "decode_tok_s":
            return {"tpot_mean_ms": 1e3 * (self.clients or 1) / value}
        return {self.metric: value}


def read_line(where: str, raw: dict[str, str]) -> Line:
    """The line at `where`, by column. Raises InputError for a number that is none."""
    cells = Cells(where, {key: value for key, value in raw.items() if key and isinstance(value, str)})
    metric = (cells.text("metric") or "").lower()
    kind = next((name for name, pattern in _METRICS.items() if pattern.search(metric)), "")
    if kind != "acceptance_length" and _ANOTHER.search(metric):
        kind = ""
    drafts = cells.count("k", least=0) if _WHOLE.fullmatch(cells.text("k") or "") else None
    return Line(cells, kind, cells.text("draft_or_method") or "", drafts)
