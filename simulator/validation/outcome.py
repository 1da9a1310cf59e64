"""Result of a validation, for notebooks and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.common.html import heading, listed, table
from simulator.validation.errors import Compared

if TYPE_CHECKING:
    import pandas as pd

_STATISTICS = ("n", "median_ape", "mean_ape", "p90_ape", "bias")
_HEADINGS = ("rows", "median %", "mean %", "p90 %", "bias %")


@dataclass(frozen=True, repr=False, eq=False)
class Validation:
    """Measured runs, each with its prediction."""

    compared: tuple[Compared, ...]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document that `servesim validate --json` prints."""
        from simulator.validation.report import document

        return document(self.compared)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row for each measured number: the `row` of the file and its labels (`gpu`, `model`, `engine`), the
        `metric`, `measured`, `predicted` (NaN if it could not be simulated), `error` (predicted / measured - 1),
        `left_out` (the reason why it is left out of the errors, or empty), and `assumed` (the assumptions)."""
        import pandas as pd

        found = []
        for entry in self.compared:
            predicted = {name: value for name, _, value in entry.pairs()}
            facts = {"row": entry.row.where, **entry.row.labels}
            for name, measured in entry.row.measured.items():
                value = predicted.get(name, float("nan"))
                numbers = {"measured": measured, "predicted": value}
                error = value / measured - 1 if measured > 0 else float("nan")
                remarks = {"left_out": entry.left_out, "assumed": "; ".join(entry.row.assumptions)}
                found.append({**facts, "metric": name, **numbers, "error": error, **remarks})
        return pd.DataFrame(found)

    def __repr__(self) -> str:
        simulated = sum(entry.predicted is not None for entry in self.compared)
        return f"Validation({simulated} of {len(self.compared)} rows simulated{self._errors()})"

    def _repr_html_(self) -> str:
        """Return the errors over all rows by metric, and the assumptions, as HTML."""
        from simulator.common.console import short

        errors = self._all()
        rows = [(name, *(short(found[key]) for key in _STATISTICS)) for name, found in errors.items()]
        assumed = dict.fromkeys(text for entry in self.compared for text in entry.row.assumptions)
        remarks = listed({"code": "assumed", "text": text} for text in assumed)
        return heading(repr(self)) + (table("predicted - measured", _HEADINGS, rows) if rows else "") + remarks

    def _all(self) -> dict[str, dict[str, float]]:
        errors: dict[str, dict[str, float]] = self.document["errors"].get("all", {})
        return errors

    def _errors(self) -> str:
        found = [
            f"{label} {self._all()[name]['median_ape']:.3g}%"
            for name, label in (("ttft_mean_ms", "TTFT"), ("itl_mean_ms", "ITL"), ("e2e_mean_ms", "E2E"))
            if name in self._all()
        ]
        return f"; median errors of means: {', '.join(found)}" if found else ""
