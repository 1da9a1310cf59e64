"""The simulated engine of each pool and the settings that affect its step times, as data and as one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cost_models.specs.dtypes import kv_type
from simulator.scenario.schema import Pool, Scenario

#: The usual names of the engines that `scheduler.policy` selects.
_ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "static": "static batches",
    "orca": "Orca",
    "prefill_first": "vLLM V0",
    "sarathi": "Sarathi-Serve",
    "distserve": "DistServe",
}


def scheduler_sections(scenario: Scenario) -> dict[str, Any]:
    """Return the scheduler of each pool by name; `scenario` has the engine's defaults filled in."""
    return {name: _section(scenario, pool) for name, pool in scenario.deployment.pools.items()}


def _section(scenario: Scenario, pool: Pool) -> dict[str, Any]:
    scheduler, model = pool.scheduler, pool.model or scenario.model
    section: dict[str, Any] = {"policy": scheduler.TAG}
    if hasattr(scheduler, "version"):
        section["version"] = scheduler.version
    section |= {
        "async_scheduling": getattr(scheduler, "async_scheduling", False),
        "enable_prefix_caching": getattr(scheduler, "enable_prefix_caching", False),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "kv_cache": kv_type(model.kv_cache),
    }
    active = getattr(scheduler, "max_num_active_seqs", None)
    return section if active is None else section | {"max_num_active_seqs": active}


def scheduler_rows(sections: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a label and a line for each pool; equal pools share one."""
    lines = {name: scheduler_line([section]) for name, section in sections.items()}
    if len(set(lines.values())) == 1:
        return [("scheduler", next(iter(lines.values())))]
    return [(f"scheduler of {name}", line) for name, line in lines.items()]


def scheduler_line(sections: Sequence[Mapping[str, Any]]) -> str:
    """Return the line of schedulers that differ only in the limits of a step."""
    one = sections[0]
    version = one.get("version", "").removeprefix("vllm-").replace("none", "rules, without a version's defaults")
    tokens, seqs = (_range([each[name] for each in sections]) for name in ("max_num_batched_tokens", "max_num_seqs"))
    active = f", of which {one['max_num_active_seqs']:,} active" if "max_num_active_seqs" in one else ""
    return ", ".join(
        (
            f"{_ENGINES[one['policy']]} {version}".rstrip(),
            "asynchronous" if one["async_scheduling"] else "synchronous",
            "prefix caching" if one["enable_prefix_caching"] else "no prefix caching",
            f"up to {tokens} tokens and {seqs} sequences a step{active}",
            f"KV in {one['kv_cache'].upper()}",
        )
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
