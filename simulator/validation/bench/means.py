"""Reader of a `vllm bench serve --save-result` file without its requests: totals, means and percentiles.

The load is derived from `completed`, `total_input_tokens`, `total_output_tokens`, `request_rate`, `burstiness` and
`max_concurrency`; each assumption is printed with the results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.errors import shown
from cost_models.files.fields import Fields
from simulator.errors import InputError
from simulator.scenario.lengths import Fixed, Lengths, LogNormal
from simulator.validation.bench.server import Server
from simulator.validation.setting import Load, Row
from simulator.workload.tables import MAX_SECONDS, MAX_TOKENS

#: Fields with one entry a request, present with `--save-detailed`.
_OF_REQUESTS = ("input_lens", "output_lens", "ttfts", "itls")
#: Column of measured rows for a metric, by its name in the file.
_RATES = {
    "request_throughput": "req_per_s",
    "output_throughput": "output_tok_s",
    "total_token_throughput": "total_tok_s",
}
_STATISTIC = re.compile(r"(mean|median|p50|p90|p95|p99)_(ttft|tpot|itl|e2el)_ms")
#: All statistics that the file may have, including those that are not compared: deviations, other percentiles.
_ANY_STATISTIC = re.compile(r"(mean|median|std|p\d+(\.\d+)?)_(ttft|tpot|itl|e2el)_ms")
_NS = 10**9
#: Limit of valid counts, rates and times in ms.
_MOST = 10**9
_MOST_REQUESTS = 10**7
_SIDES = ("input", "output")
#: The narrowest and the widest spread of lengths, as a coefficient of variation: that of re-tokenised prompts of one
#: length is 1%.
_SOME, _WIDEST = 0.01, 3.0


def has_send_times(data: Mapping[str, Any]) -> bool:
    """Return whether a result has its requests, and when each was sent: at given times, all at once, or at the end of
    another request under a limit of concurrency."""
    if "completed" in data and not any(name in data for name in _OF_REQUESTS):
        return False
    at_once = data.get("request_rate") in (None, "inf", math.inf)
    return "start_times" in data or at_once or bool(data.get("max_concurrency"))


def read_means(path: Path, data: Mapping[str, Any], server: Server) -> Row:
    """Return the row of a result without the times at which its requests were sent.

    Raises:
        InputError: a total is missing or out of range, or there is no metric.
    """
    totals = Fields(str(path), data)
    completed = totals.integer("completed", most=_MOST_REQUESTS)
    means = {side: totals.integer(f"total_{side}_tokens") / completed for side in _SIDES}
    spreads = {side: server.options[f"{side}_cv"] or _recorded_spread(path, data, side) for side in _SIDES}
    spreads["output"] = spreads["output"] or _spread_of_outputs(data)
    laws = {side: _law(means[side], spreads[side]) for side in means}
    load, sent = _load(path, data, completed)
    assumed = [f"the file does not say when each request was sent (--save-detailed): {sent}", _described(laws)]
    failed = _failed(data, completed)
    if failed:
        assumed.append(f"{failed} failed requests left out")
    left = sorted(name for name in data if _ANY_STATISTIC.fullmatch(name) and not _STATISTIC.fullmatch(name))
    if left:
        assumed.append(f"in the file and not compared: {', '.join(left)}")
    setting = server.setting(laws["input"], laws["output"], load)
    return server.row(str(path), _measured(path, data), setting, assumed)


def _recorded_spread(path: Path, data: Mapping[str, Any], side: str) -> float | None:
    """Return the coefficient of variation of the lengths in the file; None without any, and if all are the same."""
    name = f"{side}_lens"
    if name not in data:
        return None
    lengths = np.array(Fields(str(path), data).numbers(name, most=MAX_TOKENS, whole=True), float)
    return float(lengths.std() / lengths.mean()) or None if len(lengths) and lengths.any() else None


def _failed(data: Mapping[str, Any], completed: int) -> int:
    """Return the number of failed requests; 0 where the file has none."""
    sent, failed = data.get("num_prompts"), data.get("failed")
    if isinstance(failed, int):
        return failed
    return max(sent - completed, 0) if isinstance(sent, int) else 0


def _spread_of_outputs(data: Mapping[str, Any]) -> float | None:
    """Return the coefficient of variation of output lengths, from that of decode times; None if not in the file."""
    names = ("mean_e2el_ms", "std_e2el_ms", "mean_ttft_ms", "std_ttft_ms")
    mean, deviation, ttft, of_ttft = (_number(data.get(name)) for name in names)
    if mean is None or deviation is None or ttft is None or of_ttft is None or mean <= ttft or deviation <= of_ttft:
        return None
    return min(math.sqrt(deviation**2 - of_ttft**2) / (mean - ttft), _WIDEST)


def _law(mean: float, spread: float | None) -> Lengths:
    """Return a law of lengths with this mean: fixed, if it is a whole number and no `spread` (CV) is known."""
    if spread is None and mean == round(mean):
        return Fixed(max(round(mean), 1))
    return LogNormal(mean=max(mean, 1.0), cv=max(spread or 0.0, _SOME))


def _described(laws: Mapping[str, Lengths]) -> str:
    """Return the laws of lengths, in words."""
    texts = []
    for side, law in laws.items():
        assert isinstance(law, Fixed | LogNormal)
        texts.append(
            f"{side}s of {law.value:,} tokens"
            if isinstance(law, Fixed)
            else f"{side}s of {law.mean:,.1f} tokens on average, log-normal with a CV of {law.cv:.2g} (--set {side}_cv)"
        )
    return " and ".join(texts)


def _load(path: Path, data: Mapping[str, Any], completed: int) -> tuple[Load, str]:
    """Return the load, and in words the assumptions about it."""
    rate = _rate(path, data)
    limit = None if not data.get("max_concurrency") else Fields(str(path), data).integer("max_concurrency")
    if rate is None:
        if limit is None:
            return Load(completed), "all requests at once"
        return Load(completed, limit=limit), f"{limit} clients, each of which sends when its last request has ended"
    given = data.get("burstiness")
    burstiness = 1.0 if given is None else _number(given)
    if burstiness is None or not _SOME <= burstiness <= _MOST:
        raise InputError(f"{path}: burstiness: expected a number from {_SOME:g} to {_MOST:,}, found {shown(given)}")
    process = "Poisson arrivals" if burstiness == 1 else f"gamma arrivals of burstiness {burstiness:g}"
    gate = "" if limit is None else f", at most {limit} at a time"
    # The client scales the gaps so that the mean rate of the requests is exact (`get_request` of vllm/benchmarks).
    if completed / rate > MAX_SECONDS:
        raise InputError(f"{path}: request_rate: {completed:,} requests at {rate:g}/s last for more than a century")
    duration_ns = round(completed / rate * _NS)
    load = Load(completed, rate=rate, duration_ns=duration_ns, burstiness=burstiness, limit=limit)
    return load, f"{process} at {rate:g}/s{gate}, drawn again"


def _rate(path: Path, data: Mapping[str, Any]) -> float | None:
    """Return the client's rate; None if it sends all requests at once."""
    rate = data.get("request_rate")
    if rate is None or (isinstance(rate, str) and rate.lower() == "inf") or rate == math.inf:
        return None
    found = _number(rate)
    if found is None or not 1 / _MOST <= found <= _MOST:
        raise InputError(
            f"{path}: request_rate: expected a number from {1 / _MOST:g} to {_MOST:,} or inf: {shown(rate)}"
        )
    return found


def _measured(path: Path, data: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics, by the columns of measured rows. Raises InputError for none, or one out of range."""
    found: dict[str, float] = {}
    for name, value in data.items():
        known = _STATISTIC.fullmatch(name)
        if known is None and name not in _RATES:
            continue
        number = _number(value)
        if number is None or not 0 <= number <= _MOST:
            raise InputError(f"{path}: {name}: expected a number from 0 to {_MOST:,}, found {shown(value)}")
        found[_RATES[name] if known is None else _column(*known.groups())] = number
    if not any(name.endswith("_ms") for name in found):
        raise InputError(f"{path}: has neither requests (--save-detailed) nor means such as mean_ttft_ms")
    return found


def _column(statistic: str, metric: str) -> str:
    metric = "e2e" if metric == "e2el" else metric
    return f"{metric}_{'p50' if statistic == 'median' else statistic}_ms"


def _number(value: Any) -> float | None:
    """Return `value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MOST and math.isfinite(value) else None
