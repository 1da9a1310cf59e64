"""Metrics of the rows of speculative decoding, by name and unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.validation.cells import NotSimulatedError

#: Kinds of metrics, by patterns of their names; the first match counts.
_KINDS = {
    "tpot_speed_up": re.compile(r"speed-?up"),
    "acceptance_length": re.compile(r"accept(ance|ed) length|tokens per step"),
    "tpot_mean_ms": re.compile(r"tpot|time per output token"),
    "output_tok_s": re.compile(r"output (tok(en)?s?/s|(token )?throughput)"),
    "decode_tok_s": re.compile(r"decode tok(en)?s?/s|^(tok(en)?s?/s|tps) ?(/|per) ?user"),
}
#: Words for other statistics than means, which are not compared.
_ANOTHER = re.compile(
    r"(\b|_)p\d|percentile|median|\b(max|min|peak|std)|gain|\bratio|reduction|improvement|share|per gpu|/gpu"
)
#: Mark of a rate of one client, in its name or its unit.
_PER_USER = re.compile(r"\s*(/|\bper)\s*(user|client|request|sequence|stream)\b")
#: Mark of an acceptance length that counts only the accepted drafts.
_NO_BONUS = re.compile(r"\b(excl\w*|without|w/o|no)\b\W*(of |the )*bonus")
#: The unit in `TPOT (s)`, `TPOT [ms]` and `tpot_ms`.
_IN_NAME = re.compile(r"[(\[]\s*([\w/µ]+)\s*[)\]]|_(ms|us|s)$")

_TIMES = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "µs": 1e-3}
_RATES = dict.fromkeys(("tok/s", "token/s", "tokens/s", "tok/sec", "tokens/sec", "tokens/second", "tps"), 1.0)
_LENGTHS = dict.fromkeys(("tok", "tokens", "tok/step", "tokens/step", "tokens per step"), 1.0)
#: Units of each kind, as multiples of the unit of the comparison.
_UNITS = {
    "tpot_speed_up": {"x": 1.0, "ratio": 1.0},
    "acceptance_length": _LENGTHS,
    "tpot_mean_ms": _TIMES,
    "output_tok_s": _RATES,
    "decode_tok_s": _RATES,
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a row. `kind` is empty, with a `reason`, if it is not compared.

    value x `scale` + `offset` is in the kind's own unit: ms, tokens a second, or tokens a step, the verified one
    included. `per_user`: of one client, not of all.
    """

    kind: str
    scale: float = 1.0
    offset: float = 0.0
    per_user: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """The predicted metric: as `kind`, but a time between tokens instead of the rate of decodes."""
        return "tpot_mean_ms" if self.kind == "decode_tok_s" else self.kind

    def quantity(self, value: float, clients: int | None) -> float:
        """Return `value` in the unit of `name`. Raises NotSimulatedError if that needs the number of clients and it is
        None."""
        value = value * self.scale + self.offset
        shared = self.kind == "decode_tok_s" and not self.per_user
        if not shared and not (self.kind == "output_tok_s" and self.per_user):
            return 1e3 / value if self.kind == "decode_tok_s" else value
        if clients is None:
            raise NotSimulatedError("the rate needs the number of clients, and batch_or_concurrency has none")
        return 1e3 * clients / value if shared else value * clients


def read_metric(text: str, unit: str) -> Metric:
    """Return the metric with the name `text` and the unit `unit`, which may be empty."""
    called = text.lower()
    kind = next((name for name, pattern in _KINDS.items() if pattern.search(called)), "")
    if not kind or _ANOTHER.search(called):
        return Metric("", reason=f"metric {text!r} is not compared")
    scales = _scales(kind, called, unit)
    if scales is None or len(scales) > 1:
        return Metric("", reason=f"unit {unit!r} of {text} is not read")
    is_rate = kind in ("output_tok_s", "decode_tok_s")
    return Metric(
        kind,
        scale=scales.pop() if scales else 1.0,
        offset=1.0 if kind == "acceptance_length" and _NO_BONUS.search(called) else 0.0,
        per_user=is_rate and bool(_PER_USER.search(called) or _PER_USER.search(unit.lower())),
    )


def _scales(kind: str, called: str, unit: str) -> set[float] | None:
    """Return the scales of the units in the unit's column and the metric's name; None for an unknown unit."""
    units = _UNITS[kind]
    in_name = (first or second for first, second in _IN_NAME.findall(called))
    found = {units[name] for name in in_name if name in units}
    plain = _PER_USER.sub("", unit.strip().lower())
    if kind == "tpot_mean_ms":
        plain = re.sub(r"\s*(/|per)\s*(output )?tok(en)?$", "", plain)
    if not plain:
        return found
    return found | {units[plain]} if plain in units else None
