"""The result of a fit, and the checks of each row before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cost_models.calibration.split import Errors
from cost_models.errors import CostModelError

#: A row is dropped if its time is shorter than the physical bound by more than this: clocks and peaks are not exact
#: (boost clocks, timer resolution of half a microsecond).
_SLACK = 0.98


class TooFewRowsError(CostModelError):
    """Too few measurements for a fit; the operator's earlier law is kept. Its text says which measurements are
    missing."""


class Law(Protocol):
    """A law of an operator that can be written to a file."""

    def to_json(self) -> dict[str, Any]:
        """Return its parameters as plain lists, numbers and texts."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted law.

    `errors` are those of a fit without the held-out shapes on these shapes, by group of shapes (named by the group);
    `law` itself is fitted to all rows. `dropped` is the number of rows left out before the fit, by reason.
    """

    law: Law
    errors: Mapping[str, Errors]
    rows: int
    dropped: Mapping[str, int]
    source: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a calibrated file."""
        return {
            "source": self.source,
            "rows": self.rows,
            "dropped": dict(self.dropped),
            "held_out_errors": {name: found.to_json() for name, found in self.errors.items()},
            "law": self.law.to_json(),
        }


def possible(rows: pd.DataFrame, bound_ns: NDArray[np.float64]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows that are physically possible, and the number of dropped rows by reason.

    Args:
        rows: with a column `latency_ns`.
        bound_ns: for each row the longer of its FLOPs at the peak rate and its compulsory bytes at the peak bandwidth.
    """
    time = rows["latency_ns"].to_numpy(float)
    broken = ~np.isfinite(time) | (time <= 0)
    beyond = ~broken & (time < bound_ns * _SLACK)
    dropped = {"not a time": int(broken.sum()), "faster than physics allows": int(beyond.sum())}
    return rows[~(broken | beyond)], {reason: count for reason, count in dropped.items() if count}
