"""Reader of measured rows: CSV files with one row for each run or stage."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise, zip_longest
from pathlib import Path

from cost_models import CostModelError, load_gpu, load_model
from cost_models.files.documents import csv_rows
from simulator.errors import InputError
from simulator.scenario.lengths import Lengths, Quantiles
from simulator.scenario.traffic import PromptPool
from simulator.validation.assumptions import (
    Clients,
    batch_defaults,
    clients_of,
    engine_of,
    output_law,
    prompt_law,
    quantile_law,
)
from simulator.validation.cells import Cells, NotSimulatedError
from simulator.validation.setting import Load, Row, Setting
from simulator.validation.speculation import reader as speculating

#: Columns of metrics that are compared; other metrics, such as re-tokenised ITLs, are ignored.
METRIC = re.compile(r"(ttft|itl|tpot|e2e)_(mean|p50|p90|p95|p99)_ms|req_per_s|output_tok_s|total_tok_s")

_NS = 10**9
#: Host model of all engines: terms fitted to rows of another engine predict its other rows no better.
_HOST = "vllm"


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a CSV file of measurements.

    It needs the columns `model` and `gpu`, a rate (`request_rate`) or `concurrency`, lengths and at least one metric;
    docs/accuracy.md lists the other columns that are read. A file with `draft_or_method`, `metric` and `value` has one
    row for each metric of speculative decoding, and is read by `speculating`.

    Raises:
        InputError: no such file, no CSV, a needed column is missing, or a number is not valid.
    """
    lines = csv_rows(path)
    _, header = next(lines, (1, []))
    rows = [(number, dict(zip_longest(header, cells[: len(header)], fillvalue=""))) for number, cells in lines]
    _check_unique(path, header)
    if set(header) >= speculating.COLUMNS:
        return speculating.rows_of(path, rows)
    _check_header(path, header)
    return [_row(path, line, cells) for line, cells in rows]


def _check_unique(path: Path, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}:1: the column {twice[0]} is there twice")


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in ("model", "gpu") if name not in header]
    if missing:
        raise InputError(f"{path}:1: missing column {', '.join(missing)}; each row needs its model and its GPU")
    if not {"request_rate", "concurrency"} & set(header):
        raise InputError(f"{path}:1: needs a column request_rate or concurrency")
    if not any(METRIC.fullmatch(name) for name in header):
        raise InputError(f"{path}:1: has no metric such as ttft_mean_ms, itl_mean_ms, tpot_mean_ms, e2e_p90_ms")


def _row(path: Path, line: int, raw: dict[str, str]) -> Row:
    where = f"{path}:{line}"
    cells = Cells(where, {key: value for key, value in raw.items() if key and isinstance(value, str)})
    names = [name for name in raw if name and METRIC.fullmatch(name)]
    metrics = {name: cells.number(name) for name in names}
    labels = {name: cells.text(name) or "" for name in ("gpu", "model", "engine") if cells.text(name)}
    assumptions: list[str] = []
    setting, reason = None, ""
    try:
        setting = _setting(cells, assumptions)
    except (NotSimulatedError, CostModelError) as error:
        reason = str(error)
    return Row(
        where=where,
        run="|".join((str(path), cells.text("source") or "", cells.text("experiment") or where)),
        stage=cells.count("stage", least=0) or 0,
        labels=labels,
        measured={name: value for name, value in metrics.items() if value is not None},
        setting=setting,
        staged="stage" in raw,
        reason=reason,
        overloaded=bool(cells.flag("overloaded")),
        note=cells.text("note") or "",
        assumptions=tuple(assumptions),
        groups=cells.texts("group"),
    )


def _setting(cells: Cells, assumptions: list[str]) -> Setting:
    engine = engine_of(cells.text("engine") or "vllm")
    if engine is None:
        raise NotSimulatedError(f"unknown engine {cells.text('engine')!r}")
    _check_mode(cells)
    model = load_model(cells.text("model") or "")
    gpu = load_gpu(cells.text("gpu") or "")
    tensor_parallel = _tensor_parallel(cells)
    pipeline_parallel = cells.count("pp") or 1
    weights, kv_cache = _formats(cells, assumptions)
    pool = _prompt_pool(cells)
    caching = cells.flag("prefix_caching")
    utilization = _utilization(cells)
    closed = cells.text("input_len_dist") is None
    clients = clients_of(cells.count("concurrency") if closed else None, cells.text("provenance") or "")
    if clients is not None:
        assumptions += clients.assumptions(engine)
    old = (cells.text("engine_version") or "").startswith(("0.7", "0.8")) and engine == "vllm"
    if old:
        assumptions.append("vLLM V0: simulated with V1's scheduler, without asynchronous scheduling")
    in_process = (cells.text("source") or "").startswith("AccelMark")
    prompts = _lengths(cells, "input", lambda mean: prompt_law(mean, model.name, clients, pool is not None))
    seqs, budget = batch_defaults(engine, in_process)
    unsaid = [name for name in ("max_num_seqs", "max_num_batched_tokens") if cells.count(name) is None]
    if clients is not None:
        budget = clients.budget(engine, cells.number(*_LENGTHS["input"]) or 0) or budget
    if unsaid:
        assumptions.append(f"{' and '.join(unsaid)}: the engine's default, or what is assumed of a closed loop")
    return Setting(
        engine=engine,
        model=model.name,
        gpu=gpu.name,
        tensor_parallel=tensor_parallel,
        weights=weights,
        kv_cache=kv_cache,
        max_num_seqs=cells.count("max_num_seqs") or seqs,
        max_num_batched_tokens=cells.count("max_num_batched_tokens") or budget,
        max_model_len=_max_model_len(cells),
        gpu_memory_utilization=utilization,
        prefix_caching=pool is not None if caching is None else caching,
        async_scheduling=not old and pipeline_parallel == 1,
        host=_HOST,
        front_end=not in_process,
        prompt_tokens=prompts,
        output_tokens=_lengths(cells, "output", lambda mean: output_law(mean, clients)),
        prompt_pool=pool,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=_expert_parallel(cells, tensor_parallel),
        load=_load(cells, clients, assumptions),
    )


def _utilization(cells: Cells) -> float:
    """Return the share of the GPU's memory for the engine; vLLM's default, 0.9, if the row does not have it."""
    found = cells.number("gpu_memory_utilization")
    if found is None:
        return 0.9
    if not 0 < found <= 1:
        raise cells.error("gpu_memory_utilization", "a share above 0 and up to 1", found)
    return found


def _check_mode(cells: Cells) -> None:
    mode = cells.text("mode") or ""
    if mode.startswith("disagg"):
        # Instances of the public rows have 16 GPUs each, and communication between GPUs is measured on at most 8.
        raise NotSimulatedError("the split of the model over disaggregated instances (other_config) is not read")


def _expert_parallel(cells: Cells, tensor_parallel: int) -> bool:
    """Return whether GPUs have whole experts, from a text such as `attn_dp=1;moe_tp=1;moe_ep=4` for 4 GPUs."""
    text = cells.text("ep_dp") or ""
    sizes = {name: int(size) for name, size in re.findall(r"(attn_dp|moe_tp|moe_ep|ep)=(\d+)", text)}
    groups = sizes.get("moe_ep", sizes.get("ep", 1))
    if sizes.get("attn_dp", 1) > 1:
        raise NotSimulatedError(f"ep_dp {text}: the row does not state how tp and attn_dp share the GPUs")
    if groups not in (1, tensor_parallel):
        raise NotSimulatedError(f"ep_dp {text}: experts in {groups} groups of several GPUs each are not simulated")
    return groups > 1


def _tensor_parallel(cells: Cells) -> int:
    found = cells.count("tp", "tensor_parallel")
    if found is None:
        raise NotSimulatedError("tp is empty")
    return found


def _formats(cells: Cells, assumptions: list[str]) -> tuple[str, str]:
    """Return the formats (weights, KV cache) from `fp8;gemm=fp8;moe=fp8`, `FP16` or `BF16/bfloat16/None`; `auto`, the
    model's own, if they are not stated."""
    text = (cells.text("weight_dtype") or "").lower()
    first = re.split(r"[;/]", text)[0]
    if not first:
        assumptions.append("weights in the model's own format")
        return "auto", "auto"
    known = {"fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "int8": "int8"}
    if first not in known:
        raise NotSimulatedError(f"weight_dtype {first!r} is not simulated")
    weights = known[first]
    if weights != "fp8":
        return weights, "auto"
    assumptions.append("KV cache in FP8, as the weights")
    return weights, "fp8"


def _prompt_pool(cells: Cells) -> PromptPool | None:
    groups, each = cells.count("prompt_groups"), cells.count("prompts_per_group")
    if groups is None or each is None:
        return None
    return PromptPool(groups * each, groups, int(cells.number("system_prompt_tokens") or 0))


#: The columns of a mean length, by side.
_LENGTHS = {
    "input": ("input_tokens_mean", "input_len_mean"),
    "output": ("output_tokens", "requested_output_len", "output_len_mean"),
}


def _lengths(cells: Cells, side: str, law: Callable[[float], Lengths]) -> Lengths:
    """Return the law of lengths: `law` of the mean if the row has one, else that of its quantiles."""
    names = _LENGTHS[side]
    mean = cells.number(*names)
    if mean is not None:
        if mean < 1:
            raise cells.error(names[0], "a length of at least 1 token", mean)
        return law(mean)
    text = cells.text(f"{side}_len_dist")
    if text is None:
        raise NotSimulatedError(f"no {names[0]} and no {side}_len_dist")
    return _quantiles(text, side)


def _quantiles(text: str, side: str) -> Quantiles:
    """Return the law of `input_tokens_p25=120;input_tokens_p50=280;...;cap output_tokens_max=512`."""
    given = [(int(p) / 100, int(v)) for p, v in re.findall(rf"{side}_tokens_p(\d+)=(\d+)", text)]
    cap = re.search(r"tokens_max=(\d+)", text)
    if len(given) < 2:
        raise NotSimulatedError(f"{side}_len_dist {text!r} has fewer than two quantiles")
    given.sort()
    rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(given))
    if not rising or given[0][1] < 1 or given[0][0] <= 0 or given[-1][0] >= 1:
        raise NotSimulatedError(f"{side}_len_dist {text!r}: quantiles must rise, from 1 token on, within p1 to p99")
    return quantile_law(given, int(cap[1]) if cap else None)


def _load(cells: Cells, clients: Clients | None, assumptions: list[str]) -> Load:
    concurrency, rate = cells.count("concurrency"), cells.number("request_rate")
    requests = _requests(cells)
    arrival = (cells.text("arrival") or "").lower()
    if "burst phase" in arrival:
        raise NotSimulatedError(f"arrival {cells.text('arrival')!r}: the other phases of the load are not described")
    if "offline" in arrival and requests is not None:
        assumptions.append("offline: all requests at once, whatever the concurrency")
        return Load(requests)
    if concurrency is not None:
        loop = clients or Clients(concurrency, equal=False)
        count = requests or loop.requests
        return Load(count, concurrency=concurrency, warmup=min(loop.warmup, count // 2))
    if rate is None:
        raise NotSimulatedError("neither request_rate nor concurrency")
    if math.isinf(rate):
        if requests is None:
            raise NotSimulatedError("request_rate inf without n_requests")
        return Load(requests)
    duration = cells.number("duration_s")
    if rate <= 0 or (requests is None and duration is None):
        raise NotSimulatedError("an open load needs a request_rate above 0, and n_requests or duration_s")
    if duration is None:
        return Load(requests or 1, rate=rate)
    return Load(requests or max(1, round(rate * duration)), rate=rate, duration_ns=round(duration * _NS))


def _requests(cells: Cells) -> int | None:
    """Return the number of requests of one run: 300 of `300 x 3 runs pooled`."""
    pooled = re.match(r"(\d+) x \d+ ", cells.text("n_requests") or "")
    return int(pooled[1]) if pooled else cells.count("n_requests")


def _max_model_len(cells: Cells) -> int | None:
    """Return the context limit from `max_model_len=4096;...` in the column other_config, if it has one."""
    match = re.search(r"(?:^|;)max_model_len=(\d+)(?:;|$)", cells.text("other_config") or "")
    return int(match[1]) if match and int(match[1]) else None
