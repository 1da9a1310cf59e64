"""Observations of the host model, from measured and simulated rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cost_models import BatchShape, HostModel, Roofline
from cost_models.calibration.host import Observation
from simulator.validation.replay import Predicted, deployed
from simulator.validation.setting import Row

_MS = 1e6


def observe(row: Row, predicted: Predicted, host: HostModel) -> Observation | None:
    """Return the observation of the host model in a row, given its simulation with `host`; None if there is none.

    Only rows without overload, note and speculation are observed. The number of running requests is that of Little's
    law. TTFT is not used in the first of several stages, where it includes the server's warm-up.
    """
    setting, measured = row.setting, row.measured
    if setting is None or setting.speculation is not None or row.overloaded or row.note or predicted.overloaded:
        return None
    if "itl_mean_ms" not in predicted.metrics:
        return None
    itl = measured.get("itl_mean_ms", measured.get("tpot_mean_ms", math.nan))
    running = running_requests(row, predicted.output_tokens)
    if not math.isfinite(itl) or not math.isfinite(running):
        return None
    cost = deployed(setting, host).cost
    assert isinstance(cost, Roofline)
    context = predicted.prompt_tokens + predicted.output_tokens / 2
    here, there = _units(cost, context, running), _units(cost, context, predicted.running)
    terms = (host.kernel_scale, host.device_step, host.device_logit, host.device_sync)
    step_ns = sum(unit * term for unit, term in zip(there, terms, strict=True))
    simulated = predicted.metrics["itl_mean_ms"] * _MS
    request_ns = 1e9 * (host.request + host.request_running * predicted.running)
    ttft = measured.get("ttft_mean_ms", math.nan) if row.stage or not row.staged else math.nan
    return Observation(
        deployment=f"{setting.model} tp{setting.tensor_parallel} {setting.gpu}",
        step_units=here,
        step_rest_ns=simulated - step_ns,
        itl_ns=itl * _MS,
        running=running,
        ttft_rest_ns=predicted.metrics["ttft_mean_ms"] * _MS - request_ns,
        ttft_ns=ttft * _MS,
    )


def running_requests(row: Row, output_tokens: float) -> float:
    """Return the mean number of running requests, by Little's law; NaN if the measurements do not suffice."""
    setting, measured = row.setting, row.measured
    assert setting is not None
    load = setting.load
    e2e = measured.get("e2e_mean_ms", _e2e(measured, output_tokens))
    if row.own:
        return measured.get("req_per_s", load.rate or math.nan) * e2e / 1e3
    if load.rate is not None:
        return load.rate * e2e / 1e3
    if load.concurrency is None:
        return math.nan
    ttft, tpot = measured.get("ttft_mean_ms", math.nan), measured.get("tpot_mean_ms", math.nan)
    decoding = tpot * (output_tokens - 1)
    return load.concurrency * decoding / (ttft + decoding)


def _e2e(measured: Mapping[str, float], output_tokens: float) -> float:
    """Return the mean time of a request as the sum of its measured parts; NaN if one is missing."""
    per_token = measured.get("itl_mean_ms", measured.get("tpot_mean_ms", math.nan))
    return measured.get("ttft_mean_ms", math.nan) + per_token * (output_tokens - 1)


def _units(cost: Roofline, context: float, running: float) -> tuple[float, float, float, float]:
    """Return ns of a decode step for one unit of each term, interpolated to a mean number of running requests."""
    low = max(1, math.floor(running))
    share = min(max(running - low, 0.0), 1.0)
    first, second = (cost.host_units(_decodes(count, context, cost.window)) for count in (low, low + 1))
    return tuple(a + (b - a) * share for a, b in zip(first, second, strict=True))  # type: ignore[return-value]


def _decodes(count: int, context: float, window: int) -> BatchShape:
    seen = min(context, window) if window else 0
    return BatchShape(count, round(count * context), round(count * seen), (), 0, count)
