"""Descriptions of the simulations of measured rows: engines in words, loads in words and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulator.results.schedulers import scheduler_line
from simulator.scenario.plain_values import plain
from simulator.validation.errors import Compared
from simulator.validation.setting import Load, Row, Setting

#: Settings in which different engines differ, beside the size of a step.
_KIND = (
    *("policy", "version", "async_scheduling", "enable_prefix_caching", "kv_cache", "max_num_active_seqs"),
    *("gpu_memory_utilization", "host", "front_end"),
)
_NS = 10**9


def load_facts(setting: Setting) -> dict[str, Any]:
    """Return the load of a row, as data."""
    load = setting.load
    facts: dict[str, Any] = {"requests": load.requests, "arrivals": arrivals_of(load)}
    if load.detail is None:
        facts |= {"input_tokens": plain(setting.prompt_tokens), "output_tokens": plain(setting.output_tokens)}
    if load.warmup:
        facts["not_measured"] = load.warmup
    if setting.prompt_pool is not None:
        facts["prompt_pool"] = plain(setting.prompt_pool)
    return facts


def arrivals_of(load: Load) -> str:
    """Return the arrivals of requests, in words."""
    if load.detail is not None:
        return f"as recorded, at most {load.detail.concurrency} at a time" if load.detail.concurrency else "as recorded"
    if load.concurrency is not None:
        return f"closed loop of {load.concurrency} client{'s' * (load.concurrency > 1)}"
    gate = f", at most {load.limit} at a time" if load.limit else ""
    if load.rate is None:
        return f"all at once{gate}"
    process = "Poisson" if load.burstiness == 1 else f"gamma with burstiness {load.burstiness:g}"
    seconds = "" if load.duration_ns is None else f" in {load.duration_ns / _NS:g} s"
    return f"{process} at {load.rate:g}/s{seconds}{gate}"


def load_line(row: Row) -> str:
    """Return the load of a row that can be simulated, in words."""
    assert row.setting is not None
    setting, requests = row.setting, row.setting.load.requests
    if setting.load.detail is not None:
        lengths = "lengths as recorded"
    else:
        lengths = f"{_length(plain(setting.prompt_tokens))} + {_length(plain(setting.output_tokens))} tokens"
    pool = setting.prompt_pool
    shared = "" if pool is None else f", {pool.prompts} distinct prompts sent in cycles"
    return f"{requests:,} request{'s' * (requests > 1)}, {arrivals_of(setting.load)}, {lengths}{shared}"


def _length(law: Any) -> str:
    """Return a law of lengths in words."""
    if not isinstance(law, Mapping):
        return str(law)
    if "value" in law:
        return f"{law['value']:,}"
    if "mean" in law:
        return f"{law['mean']:g} (CV {law['cv']:.2g})" if "cv" in law else f"{law['mean']:g}"
    return str(law["distribution"])


def engine_lines(compared: Iterable[Compared]) -> dict[str, int]:
    """Return a line for each simulated engine, and its number of rows. Engines that differ only in the size of a step
    share a line."""
    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in compared:
        if entry.predicted is not None and entry.predicted.engine:
            engine = entry.predicted.engine
            kinds.setdefault(tuple(engine.get(name) for name in _KIND), []).append(engine)
    return {f"{scheduler_line(engines)}, {_host(engines[0])}": len(engines) for engines in kinds.values()}


def _host(engine: Mapping[str, Any]) -> str:
    front_end = "" if engine["front_end"] else " without a front end"
    return f"{engine['gpu_memory_utilization']:.0%} of the memory, host {engine['host']}{front_end}"
