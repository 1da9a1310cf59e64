"""Does it fit? Memory, concurrency and physical bounds of a scenario, with nothing simulated."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models import BatchShape, Roofline, StagedRoofline
from simulator.engine.fleet import refusals
from simulator.study.run import Prepared


def dry_run(prepared: Prepared) -> dict[str, Any]:
    """What `servesim run --dry-run --json` prints: bytes a GPU, blocks and tokens a replica, bounds of a step.

    Where a replica has several ranks, what is said of a replica's KV memory is said of one of them.

    `concurrency` says how many requests of the workload's mean length at the middle of its life (the prompt and half of
    the output) and at its end fit the KV memory of one replica at once. `decode_bound` and `prefill_bound` are what the
    hardware cannot beat, from peak FLOP rate and peak bandwidth; the estimates are this cost model's.
    """
    scenario, table, resolved = prepared.scenario, prepared.table, prepared.resolved
    pool, service = scenario.deployment.pool, resolved.service
    served = refusals(table, service.max_model_len, service.kv_blocks * pool.memory.block_size, pool.scheduler) == 0
    lengths = {"prompt_tokens": table.prompt_tokens, "output_tokens": table.output_tokens}
    means = {name: float(values[served].mean()) if served.any() else 0.0 for name, values in lengths.items()}
    report: dict[str, Any] = {
        "scenario": scenario.name,
        "model": resolved.model.name,
        "gpu": resolved.gpu.name,
        "gpus": service.gpus,
        "replicas": pool.replicas,
        "tensor_parallel": pool.tensor_parallel,
        "pipeline_parallel": pool.pipeline_parallel,
        "data_parallel": pool.data_parallel,
        "ranks": pool.ranks,
        "max_model_len": service.max_model_len,
        "memory_per_gpu": _memory(prepared),
        "kv_per_replica": {
            "blocks": service.kv_blocks,
            "block_size": pool.memory.block_size,
            "tokens": service.kv_blocks * pool.memory.block_size,
        },
        "workload": {"requests": len(table), "refused": int(np.count_nonzero(~served))}
        | {f"mean_{name}": round(mean, 1) for name, mean in means.items()},
    }
    if served.any():
        prompt, output = means["prompt_tokens"], means["output_tokens"]
        report |= _concurrency(prepared, prompt, output)
        report |= _bounds(prepared, round(prompt), round(prompt + output / 2), report["concurrency"]["at_half_output"])
    return report


def _memory(prepared: Prepared) -> dict[str, int] | None:
    capacity = prepared.resolved.capacity
    if capacity is None:
        return None
    return {
        "hbm_bytes": capacity.hbm_bytes,
        "budget_bytes": capacity.budget_bytes,
        "weight_bytes": capacity.weight_bytes,
        "activation_bytes": capacity.activation_bytes,
        "kv_bytes": capacity.kv_bytes,
        "kv_bytes_per_token": capacity.block_bytes // capacity.block_size,
    }


def _concurrency(prepared: Prepared, prompt: float, output: float) -> dict[str, Any]:
    pool, blocks = prepared.scenario.deployment.pool, prepared.resolved.service.kv_blocks
    most = pool.scheduler.max_num_seqs
    sizes = {"at_half_output": prompt + output / 2, "at_full_output": prompt + output}
    fits = {name: int(blocks // -(-size // pool.memory.block_size)) for name, size in sizes.items()}
    limited = "max_num_seqs" if most <= fits["at_half_output"] else "kv_memory"
    return {"concurrency": {name: min(count, most) for name, count in fits.items()} | {"limited_by": limited}}


def _bounds(prepared: Prepared, prompt: int, context: int, batch: int) -> dict[str, Any]:
    cost = prepared.resolved.service.cost
    if not isinstance(cost, Roofline | StagedRoofline) or batch < 1:
        return {}
    decode = BatchShape(decodes=batch, decode_context=batch * context, sampled=batch)
    if cost.window:
        decode = decode._replace(decode_window_context=batch * min(context, cost.window))
    prefill = BatchShape(chunks=((prompt, 0),), new_requests=1, sampled=1)
    return {"decode": _step(cost, decode) | {"batch": batch, "context": context}, "prefill": _step(cost, prefill)} | {
        "prefill_prompt_tokens": prompt
    }


def _step(cost: Roofline | StagedRoofline, shape: BatchShape) -> dict[str, float]:
    bound, estimate = cost.bound_ns(shape), sum(cost.step_cost(shape))
    return {
        "bound_ms": bound / 1e6,
        "estimate_ms": estimate / 1e6,
        "bound_tokens_per_s": round(shape.tokens / bound * 1e9, 1),
    }


def print_dry_run(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    from rich.table import Table

    from simulator.screen import Screen

    table = Table(title=f"{report['scenario']}: does it fit?", show_header=False, title_justify="left")
    for name, value in _rows(report):
        table.add_row(name, value)
    Screen().print(table)


_SPLITS = {"PP": "pipeline_parallel", "DP": "data_parallel"}
_MEMORY = {
    "hbm_bytes": "memory of a GPU",
    "budget_bytes": "of that, for the engine",
    "weight_bytes": "weights",
    "activation_bytes": "activations",
    "kv_bytes": "left for KV",
}


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    kv, work = report["kv_per_replica"], report["workload"]
    replicas = "1 replica" if report["replicas"] == 1 else f"{report['replicas']} replicas"
    split = [f"TP {report['tensor_parallel']}"]
    split += [f"{name} {report[key]}" for name, key in _SPLITS.items() if report[key] > 1]
    placement = f"{report['model']} on {report['gpus']} x {report['gpu']}: {replicas}, {', '.join(split)}"
    place = "replica" if report["ranks"] == report["replicas"] else "rank"
    rows = [("deployment", placement)]
    if report["memory_per_gpu"] is not None:
        rows += [(label, _bytes(report["memory_per_gpu"][name])) for name, label in _MEMORY.items()]
        rows.append(("KV of a token, a GPU", f"{report['memory_per_gpu']['kv_bytes_per_token'] / 1024:g} KiB"))
    rows += [
        (f"KV of a {place}", f"{kv['blocks']:,} blocks of {kv['block_size']} = {kv['tokens']:,} tokens"),
        ("context limit", f"{report['max_model_len']:,} tokens"),
        ("workload", f"{work['requests']:,} requests, {work['refused']:,} too large"),
        ("mean lengths", f"{work['mean_prompt_tokens']:,g} in, {work['mean_output_tokens']:,g} out"),
    ]
    if "concurrency" in report:
        fits = report["concurrency"]
        text = (
            f"{fits['at_half_output']:,} mean requests at mid-life, {fits['at_full_output']:,} at their end, a {place}"
        )
        limit = "max_num_seqs" if fits["limited_by"] == "max_num_seqs" else "KV memory"
        rows.append(("concurrency", f"{text}; {limit} is the limit"))
    if "decode" in report:
        decode, prefill = report["decode"], report["prefill"]
        rows.append((f"decode step of {decode['batch']:,} at {decode['context']:,}", _step_text(decode)))
        rows.append((f"prefill of {report['prefill_prompt_tokens']:,}", _step_text(prefill)))
    return rows


def _step_text(step: dict[str, float]) -> str:
    return (
        f"at least {step['bound_ms']:,.2f} ms ({step['bound_tokens_per_s']:,.0f} tokens/s), "
        f"estimated {step['estimate_ms']:,.2f} ms"
    )


def _bytes(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"
