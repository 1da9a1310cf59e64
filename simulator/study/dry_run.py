"""Memory, concurrency and physical bounds of a scenario, without simulating it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models import BatchShape, KvCapacity, Roofline, SpeculativeCost, StagedRoofline
from simulator.deployment.resolve import ResolvedPool
from simulator.engine.admission import build_admission
from simulator.results.schedulers import scheduler_rows, scheduler_sections
from simulator.scenario.speculation import AdaptiveLength, Proposer
from simulator.scheduling import limits
from simulator.study.prepare import Prepared


def dry_run(prepared: Prepared) -> dict[str, Any]:
    """Return the document that `servesim run --dry-run --json` prints: by pool, bytes of a GPU, KV blocks, bounds of a
    step.

    `concurrency` is the number of requests of the workload's mean lengths that fit the KV memory of one replica at
    once, at the middle of their life (the prompt and half of the output) and at its end; in a prefill pool, with the
    prompt alone. If a replica has several ranks, it and the KV memory are those of one rank. `decode_bound` and
    `prefill_bound` follow from peak FLOP rate and peak bandwidth; the estimates are those of the pool's cost model.
    """
    scenario, table, resolved = prepared.scenario, prepared.table, prepared.resolved
    admission = build_admission(scenario, table, resolved.services)
    served = np.array([not admission.refusal(index) for index in range(len(table))], bool)
    lengths = {"prompt_tokens": table.prompt_tokens, "output_tokens": table.output_tokens}
    means = {name: float(values[served].mean()) if served.any() else 0.0 for name, values in lengths.items()}
    return {
        "scenario": scenario.name,
        "schedulers": scheduler_sections(scenario),
        "gpus": sum(service.gpus for service in resolved.services),
        "max_model_len": resolved.max_model_len,
        "workload": {"requests": len(table), "refused": int(np.count_nonzero(~served))}
        | {f"mean_{name}": round(mean, 1) for name, mean in means.items()},
        "pools": {pool.name: _pool(pool, means if served.any() else None) for pool in resolved.pools},
        "warnings": [{"code": note.code, "text": note.text} for note in (*table.notes, *resolved.notes)],
    }


def _pool(pool: ResolvedPool, means: dict[str, float] | None) -> dict[str, Any]:
    settings, service = pool.settings, pool.service
    report: dict[str, Any] = {
        "role": settings.role,
        "model": pool.model.name,
        "gpu": pool.gpu.name,
        "gpus": service.gpus,
        "replicas": settings.replicas,
        "tensor_parallel": settings.tensor_parallel,
        "pipeline_parallel": settings.pipeline_parallel,
        "data_parallel": settings.data_parallel,
        "ranks": settings.ranks,
        "memory_per_gpu": _memory(pool.capacity),
        "kv_per_replica": {
            "blocks": service.kv_blocks,
            "block_size": settings.memory.block_size,
            "tokens": service.kv_blocks * settings.memory.block_size,
        },
    }
    if means is not None:
        prompt, output = means["prompt_tokens"], means["output_tokens"] if settings.role != "prefill" else 0.0
        report |= _concurrency(pool, prompt, output)
        report |= _bounds(pool, round(prompt), round(prompt + output / 2), report["concurrency"]["at_half_output"])
    return report


def _memory(capacity: KvCapacity | None) -> dict[str, int] | None:
    if capacity is None:
        return None
    report = {
        "hbm_bytes": capacity.hbm_bytes,
        "budget_bytes": capacity.budget_bytes,
        "weight_bytes": capacity.weight_bytes,
        "activation_bytes": capacity.activation_bytes,
        "kv_bytes": capacity.kv_bytes,
        "kv_bytes_per_token": capacity.block_bytes // capacity.block_size,
    }
    if capacity.draft_bytes:
        report |= {"drafter_bytes": capacity.draft_bytes, "drafter_kv_bytes_per_token": capacity.draft_token_bytes}
    return report


def _concurrency(pool: ResolvedPool, prompt: float, output: float) -> dict[str, Any]:
    most, size = limits(pool.settings.scheduler).max_running, pool.settings.memory.block_size
    tokens = {"at_half_output": prompt + output / 2, "at_full_output": prompt + output}
    fits = {name: int(pool.service.kv_blocks // -(-count // size)) for name, count in tokens.items()}
    limited = "max_num_seqs" if most <= fits["at_half_output"] else "kv_memory"
    return {"concurrency": {name: min(count, most) for name, count in fits.items()} | {"limited_by": limited}}


def _bounds(pool: ResolvedPool, prompt: int, context: int, batch: int) -> dict[str, Any]:
    cost, role, settings = pool.service.cost, pool.settings.role, pool.settings.speculation
    target = cost.target if isinstance(cost, SpeculativeCost) else cost
    if not isinstance(target, Roofline | StagedRoofline) or batch < 1:
        return {}
    report: dict[str, Any] = {}
    if role != "prefill":
        decode = BatchShape(decodes=batch, decode_context=batch * context, sampled=batch)
        if cost.window:
            decode = decode._replace(decode_window_context=batch * min(context, cost.window))
        report["decode"] = _step(target, decode) | {"batch": batch, "context": context}
        if isinstance(cost, SpeculativeCost) and settings is not None:
            report["speculating"] = _speculative_bounds(cost, decode, settings)
    prefill = BatchShape(chunks=((prompt, 0),), new_requests=1, sampled=1)
    priced = cost if isinstance(cost, SpeculativeCost) else target
    return report | {"prefill": _step(priced, prefill), "prefill_prompt_tokens": prompt}


def _speculative_bounds(cost: SpeculativeCost, decode: BatchShape, settings: Proposer) -> dict[str, Any]:
    """Return the bounds of the decode step with the number of drafts that the rule gives for such a batch.

    `up_to` is True for an adaptive rule, which may propose fewer drafts, by their acceptance.
    """
    from simulator.speculation import build_length

    drafts = build_length(settings, _no_step_times).length(decode.decodes)
    keys = decode.decode_context + decode.decodes * drafts
    depth = settings.depth if drafts == settings.num_speculative_tokens else drafts
    shape = decode._replace(decode_context=keys, draft_tokens=decode.decodes * drafts, proposed=depth)
    device_ns, host_ns, draft_ns = cost.step_cost(shape)
    return {
        "drafts": drafts,
        "up_to": drafts > 0 and isinstance(settings.length, AdaptiveLength),
        "bound_ms": cost.bound_ns(shape) / 1e6,
        "estimate_ms": (device_ns + host_ns) / 1e6,
        "proposing_ms": draft_ns / 1e6,
    }


def _no_step_times(running: int, drafts: int, share: float) -> float:
    """Raise AssertionError, since a rule for the number of drafts uses step times only after its first step."""
    raise AssertionError("a rule for the number of drafts used a step time before its first step")


def _step(cost: Roofline | StagedRoofline | SpeculativeCost, shape: BatchShape) -> dict[str, float]:
    bound, (device_ns, host_ns, _) = cost.bound_ns(shape), cost.step_cost(shape)
    return {
        "bound_ms": bound / 1e6,
        "estimate_ms": (device_ns + host_ns) / 1e6,
        "bound_tokens_per_s": round(shape.tokens / bound * 1e9, 1),
    }


def print_dry_run(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    from rich.table import Table
    from rich.text import Text

    from simulator.common.console import Screen

    table = Table(title=f"{report['scenario']}: memory and bounds", show_header=False, title_justify="left")
    work = report["workload"]
    table.add_row("workload", f"{work['requests']:,} requests, {work['refused']:,} too large")
    table.add_row("mean lengths", f"{work['mean_prompt_tokens']:,g} in, {work['mean_output_tokens']:,g} out")
    table.add_row("context limit", f"{report['max_model_len']:,} tokens")
    for label, line in scheduler_rows(report["schedulers"]):
        table.add_row(label, line)
    for name, pool in report["pools"].items():
        table.add_section()
        for label, value in _rows(name, pool):
            table.add_row(label, value)
    screen = Screen()
    screen.print(table)
    for warning in report["warnings"]:
        screen.print(Text(f"{warning['code']}: {warning['text']}", style="yellow"))


_SPLITS = {"PP": "pipeline_parallel", "DP": "data_parallel"}
_MEMORY = {
    "hbm_bytes": "GPU memory",
    "budget_bytes": "usable by the engine",
    "weight_bytes": "weights",
    "drafter_bytes": "drafter weights",
    "activation_bytes": "activations",
    "kv_bytes": "KV cache",
}


def _rows(name: str, pool: dict[str, Any]) -> list[tuple[str, str]]:
    kv = pool["kv_per_replica"]
    replicas = "1 replica" if pool["replicas"] == 1 else f"{pool['replicas']} replicas"
    role = "" if pool["role"] == "both" else f", {pool['role']}"
    split = [f"TP {pool['tensor_parallel']}"]
    split += [f"{label} {pool[key]}" for label, key in _SPLITS.items() if pool[key] > 1]
    placement = f"{pool['model']} on {pool['gpus']} x {pool['gpu']}: {replicas}, {', '.join(split)}{role}"
    place = "replica" if pool["ranks"] == pool["replicas"] else "rank"
    rows = [(f"pool {name}", placement)]
    if pool["memory_per_gpu"] is not None:
        memory = pool["memory_per_gpu"]
        rows += [(label, _bytes(memory[key])) for key, label in _MEMORY.items() if key in memory]
        rows.append(("KV a token and GPU", _token_bytes(memory)))
    rows.append((f"KV of a {place}", f"{kv['blocks']:,} blocks of {kv['block_size']} = {kv['tokens']:,} tokens"))
    if "concurrency" in pool:
        fits = pool["concurrency"]
        text = (
            f"{fits['at_half_output']:,} requests of mean length at half of their output, "
            f"{fits['at_full_output']:,} at its end"
        )
        limit = "max_num_seqs" if fits["limited_by"] == "max_num_seqs" else "KV memory"
        rows.append((f"concurrency of a {place}", f"{text}; {limit} is the limit"))
    if "decode" in pool:
        decode = pool["decode"]
        text = f"context of {decode['context']:,} each: {_step_text(decode)}"
        rows.append((f"decode step of {decode['batch']:,} sequences", text))
    if "speculating" in pool:
        step = pool["speculating"]
        drafts = f"{'up to ' * step['up_to']}{step['drafts']:,} draft{'s' * (step['drafts'] != 1)}"
        text = f"at least {step['bound_ms']:,.2f} ms, estimated {step['estimate_ms']:,.2f} ms, "
        text += f"{step['proposing_ms']:,.2f} ms of them for drafting"
        none = "no drafts at this batch size"
        rows.append((f"the same with {drafts} each", text if step["drafts"] else none))
    if "prefill" in pool:
        rows.append((f"prefill of {pool['prefill_prompt_tokens']:,} tokens", _step_text(pool["prefill"])))
    return rows


def _token_bytes(memory: dict[str, int]) -> str:
    text = f"{memory['kv_bytes_per_token'] / 1024:g} KiB"
    drafter = memory.get("drafter_kv_bytes_per_token", 0)
    return f"{text}, {drafter / 1024:g} of them the drafter's" if drafter else text


def _step_text(step: dict[str, float]) -> str:
    return (
        f"at least {step['bound_ms']:,.2f} ms ({step['bound_tokens_per_s']:,.0f} tokens/s), "
        f"estimated {step['estimate_ms']:,.2f} ms"
    )


def _bytes(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"
