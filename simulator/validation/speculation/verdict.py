"""Joint findings of rows of speculative decoding: whether it paid, where it paid more, and with how many drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from simulator.validation.errors import Compared

#: Speed-ups this near to 1, and rates this near to each other, are equal: repeated runs differ by about as much.
_EQUAL = 0.05
_SPEED_UPS = ("tpot_speed_up", "output_speed_up")


@dataclass(frozen=True, slots=True)
class BestDrafts:
    """The fastest number of drafts, measured and predicted. `loss` is the share by which the measured time per token
    with the predicted number exceeds the shortest measured one."""

    series: str
    measured: int
    predicted: int
    loss: float


def best_drafts(compared: Sequence[Compared]) -> list[BestDrafts]:
    """Return the fastest number of drafts of each run that was measured with several numbers of drafts."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    for entry in compared:
        setting = entry.row.setting
        if setting is None or setting.speculation is None or entry.row.by_sign:
            continue
        for name, measured, predicted in entry.pairs():
            if name in ("tpot_mean_ms", "output_tok_s"):
                times = (measured, predicted) if name == "tpot_mean_ms" else (1 / measured, 1 / predicted)
                series.setdefault(_series(entry), []).append((setting.speculation.num_speculative_tokens, *times))
    return [_best(name, runs) for name, runs in series.items() if len({drafts for drafts, _, _ in runs}) > 1]


def _best(name: str, runs: Sequence[tuple[int, float, float]]) -> BestDrafts:
    measured = min(runs, key=lambda run: run[1])
    predicted = min(runs, key=lambda run: run[2])
    return BestDrafts(name, measured[0], predicted[0], predicted[1] / measured[1] - 1)


def _series(entry: Compared) -> str:
    labels = entry.row.labels
    return ", ".join(labels.get(name, "") for name in ("source", "model", "method", "engine", "gpu")) + (
        f", {entry.row.load}" if entry.row.load else ""
    )


def sign_counts(compared: Sequence[Compared]) -> dict[str, int]:
    """Count the rows with a measured speed-up, and those predicted on the same side of 1; rows near 1 separately."""
    counts = {"rows": 0, "same_sign": 0, "about_equal": 0, "predicted_about_equal": 0}
    for _, measured, predicted in _pairs(compared, _SPEED_UPS):
        if abs(measured - 1) <= _EQUAL:
            counts["about_equal"] += 1
            counts["predicted_about_equal"] += abs(predicted - 1) <= _EQUAL
        else:
            counts["rows"] += 1
            counts["same_sign"] += (measured > 1) == (predicted > 1)
    return counts


def order_counts(compared: Sequence[Compared]) -> dict[str, dict[str, int]]:
    """Count the pairs of rows judged by order, and those predicted in the measured order: of output rates and of
    speed-ups, of one engine and between engines.

    The rows of a pair have the same source, model and method, but different settings, such as GPU, load or engine, and
    measurements that differ by more than 5%.
    """
    judged = [entry for entry in compared if entry.row.by_sign]
    found = {}
    for title, names in (("output rates", ("output_tok_s",)), ("speed-ups", _SPEED_UPS)):
        pairs = list(_distinct(_pairs(judged, names)))
        for where, alike in (("of one engine", True), ("between engines", False)):
            chosen = [pair for pair in pairs if (_engine(pair[0]) == _engine(pair[1])) == alike]
            same = sum((one[1] > other[1]) == (one[2] > other[2]) for one, other in chosen)
            found[f"{title} {where}"] = {"pairs": len(chosen), "same_order": same}
    return found


_Pair = tuple[Compared, float, float]


def _pairs(compared: Sequence[Compared], names: Sequence[str]) -> Iterator[_Pair]:
    for entry in compared:
        for name, measured, predicted in entry.pairs():
            if name in names and name not in entry.row.given:
                yield entry, measured, predicted


def _engine(pair: _Pair) -> str:
    return pair[0].row.labels.get("engine", "")


def _distinct(pairs: Iterator[_Pair]) -> Iterator[tuple[_Pair, _Pair]]:
    for one, other in combinations(pairs, 2):
        alike = all(
            one[0].row.labels.get(name) == other[0].row.labels.get(name) for name in ("source", "model", "method")
        )
        if alike and one[0].row.setting != other[0].row.setting and abs(one[1] / other[1] - 1) > _EQUAL:
            yield one, other


def verdict(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return all findings as one document; empty without rows that speculate."""
    if not any(entry.row.setting is not None and entry.row.setting.speculation for entry in compared):
        return {}
    return {
        "best_drafts": [
            {"series": best.series, "measured": best.measured, "predicted": best.predicted, "loss": round(best.loss, 4)}
            for best in best_drafts(compared)
        ],
        "sign": sign_counts(compared),
        "order": order_counts(compared),
    }
