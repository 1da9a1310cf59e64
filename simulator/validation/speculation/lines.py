"""Lines of a CSV of speculative decoding: one metric of one run each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.validation.cells import Cells, NotSimulatedError
from simulator.validation.speculation.metrics import Metric, read_metric

_PLAIN = re.compile(r"vanilla|normal decoding|no speculation|baseline")
#: The number of `1.83 (of 4)`, `2.1x` and `1.26x tps/user`.
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)x?(?:\s*\(.*\)|\s+tps/user)?")
_WHOLE = re.compile(r"\d+(\.0)?")
#: A version such as v0.7.3; `V1` in an engine's name is not one.
_VERSION = re.compile(r"(?<![\w.])v?(\d)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file: its cells, its metric, and its number of drafts, k, None if that is no number."""

    cells: Cells
    metric: Metric
    method: str
    drafts: int | None

    @property
    def plain(self) -> bool:
        """Whether the line is of a run without speculation."""
        return bool(_PLAIN.search(self.method.lower())) or self.drafts == 0

    def text(self, name: str) -> str:
        """Return the text in a column."""
        return self.cells.text(name) or ""

    def number(self, name: str) -> float | None:
        """Return the number in a column; None if it is empty or holds something else, such as a range."""
        found = _NUMBER.fullmatch(self.text(name))
        return float(found[1]) if found else None

    @property
    def clients(self) -> int | None:
        """Number of concurrent requests; None if the column holds no number."""
        text = self.text("batch_or_concurrency")
        return self.cells.count("batch_or_concurrency") if _WHOLE.fullmatch(text) else None

    @property
    def gpus(self) -> int | None:
        """Number of GPUs over which the model was split; None if it is not stated."""
        return self.cells.count("tp", "n_gpus")

    @property
    def gpu(self) -> str:
        """Name of the GPU as written; "" if it is not stated."""
        return "" if "not stated" in self.text("gpu").lower() else self.text("gpu")

    @property
    def version(self) -> tuple[int, int] | None:
        """The engine's version, from its own column or from the engine's name; None if neither has one."""
        found = (_VERSION.search(self.text(name).lower()) for name in ("engine_version", "engine"))
        return next(((int(each[1]), int(each[2])) for each in found if each), None)

    @property
    def alone(self) -> bool:
        """Whether the line has an acceptance length without any measured speed."""
        return self.metric.kind == "acceptance_length" and self.number("ratio_as_reported") is None

    def quantity(self, column: str) -> float | None:
        """Return the number in a column, in the unit in which the row's metric is compared; None if none is above 0.

        Raises NotSimulatedError if the metric is not compared.
        """
        if not self.metric.kind:
            raise NotSimulatedError(self.metric.reason)
        found = self.number(column)
        return self.metric.quantity(found, self.clients) if found else None

    def measured(self, baseline: float | None) -> dict[str, float]:
        """Return the metrics of the row: its own, that of the run without speculation, and the speed-up of the two.

        `baseline` is the row's metric without speculation. If it is None, the speed-up is the row's reported ratio, if
        any. Raises NotSimulatedError for a metric that is not compared, and for a value that is no number above 0.
        """
        value, name = self.quantity("value"), self.metric.name
        if value is None:
            raise NotSimulatedError(f"value {self.text('value')!r} is no number above 0")
        if self.plain or name == "tpot_speed_up":
            return {name: value}
        speed_up = "output_speed_up" if name == "output_tok_s" else "tpot_speed_up"
        if baseline and not name.startswith("acceptance"):
            faster = baseline / value if name == "tpot_mean_ms" else value / baseline
            return {name: value, f"plain_{name}": baseline, speed_up: faster}
        ratio = self.number("ratio_as_reported")
        return {name: value} | ({speed_up: ratio} if ratio else {})


def read_line(where: str, raw: dict[str, str]) -> Line:
    """Return the line at `where`, from its cells by column. Raises InputError for an invalid number."""
    cells = Cells(where, {key: value for key, value in raw.items() if key and isinstance(value, str)})
    metric = read_metric(cells.text("metric") or "", cells.text("unit") or "")
    drafts = cells.count("k", least=0) if _WHOLE.fullmatch(cells.text("k") or "") else None
    return Line(cells, metric, cells.text("draft_or_method") or "", drafts)
