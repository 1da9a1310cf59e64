"""What was simulated for measured rows: engines in words, loads in words and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.scenario.reader import plain
from simulator.study.validation.errors import Compared
from simulator.study.validation.setting import Load, Row, Setting

_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
_NS = 10**9


def load_facts(setting: Setting) -> dict[str, Any]:
    """The load of a row, as data."""
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
    """When requests come, in words."""
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
    """The load of a row that can be simulated, in words."""
    assert row.setting is not None
    setting, requests = row.setting, row.setting.load.requests
    if setting.load.detail is not None:
        lengths = "lengths as recorded"
    else:
        lengths = f"{_length(plain(setting.prompt_tokens))} + {_length(plain(setting.output_tokens))} tokens"
    pool = setting.prompt_pool
    shared = "" if pool is None else f", {pool.prompts} distinct prompts sent round and round"
    return f"{requests:,} request{'s' * (requests > 1)}, {arrivals_of(setting.load)}, {lengths}{shared}"


def _length(law: Any) -> str:
    """A law of lengths in words."""
    if not isinstance(law, Mapping):
        return str(law)
    if "value" in law:
        return f"{law['value']:,}"
    if "mean" in law:
        return f"{law['mean']:g} (CV {law['cv']:.2g})" if "cv" in law else f"{law['mean']:g}"
    return str(law["distribution"])


def engine_lines(compared: Iterable[Compared]) -> dict[str, int]:
    """The engines that were simulated, a line each, and of how many rows: those that differ in the size of a step alone
    share one."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for entry in compared:
        if entry.predicted is not None and entry.predicted.engine:
            kinds.setdefault(_kind(entry.predicted.engine), []).append(entry.predicted.engine)
    return {f"{kind}, {_step(engines)}": len(engines) for kind, engines in kinds.items()}


def _kind(engine: Mapping[str, Any]) -> str:
    version = str(engine.get("version", "")).removeprefix("vllm-").replace("none", "")
    return ", ".join(
        (
            f"{_ENGINES[engine['policy']]} {version}".rstrip(),
            "asynchronous" if engine["async_scheduling"] else "synchronous",
            "prefix caching" if engine["enable_prefix_caching"] else "no prefix caching",
            f"KV in {engine['kv_cache'].upper()}",
            f"{engine['gpu_memory_utilization']:.0%} of the memory",
            f"host {engine['host']}" if engine["front_end"] else f"host {engine['host']} without a front end",
        )
    )


def _step(engines: Sequence[Mapping[str, Any]]) -> str:
    tokens, seqs = ([engine[name] for engine in engines] for name in ("max_num_batched_tokens", "max_num_seqs"))
    return f"at most {_range(tokens)} tokens and {_range(seqs)} sequences a step"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
