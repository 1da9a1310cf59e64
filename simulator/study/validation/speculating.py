"""Reading measured rows of speculative decoding: CSV files in which a row has one metric, named in a column.

Columns: `model`, `gpu`, `draft_or_method`, `metric`, `value`; also read are `source`, `engine`, `engine_version`,
`n_gpus`, `tp`, `k`, `dataset`, `batch_or_concurrency`, `unit`, `baseline_value`, `ratio_as_reported`, `provenance`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cost_models import CostModelError, load_gpu, load_model
from simulator.study.validation.benchmarks import Benchmark, closed_loop, offline
from simulator.study.validation.cells import NotSimulatedError
from simulator.study.validation.lines import Line, read_line
from simulator.study.validation.proposers import method_of, proposer_of
from simulator.study.validation.setting import Engine, Row, Setting
from simulator.study.validation.unsaid import engine_of

COLUMNS = frozenset({"model", "gpu", "draft_or_method", "metric", "value"})

_V0 = re.compile(r"0\.[0-7](\.|$)")
#: GPUs that compute as another one does, and differ in NVLink alone.
_TWINS = {"A800-SXM4-80GB": "A100-SXM4-80GB"}
#: Running sequences of SGLang's servers that speculate ("Max running requests is reset to 48", server_args.py).
_SGLANG_SEQS = 48
#: The GPU of rows that do not state it.
_UNSTATED_GPU = "H100"


def rows_of(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> list[Row]:
    """The rows of a file, given as line numbers and cells. Raises InputError for a number that is none."""
    lines = [read_line(f"{path}:{number}", cells) for number, cells in rows]
    lengths = {line.series: line.number("value") for line in lines if line.metric == "acceptance_length"}
    baselines = {(*line.deployment, line.metric): line.number("value") for line in lines if line.plain}
    return [_row(line, lengths.get(line.series), baselines.get((*line.deployment, line.metric))) for line in lines]


def _row(line: Line, length: float | None, baseline: float | None) -> Row:
    assumptions: list[str] = []
    setting: Setting | None = None
    plain: Setting | None = None
    reason = ""
    given: tuple[str, ...] = ()
    measured: dict[str, float] = {}
    try:
        measured = line.measured(line.number("baseline_value") or baseline)
        without = _setting(line, assumptions)
        if line.plain:
            setting = without
        else:
            setting, given = _speculating(line, without, length, assumptions)
            plain = without if any("speed_up" in name for name in measured) else None
    except (NotSimulatedError, CostModelError) as error:
        reason = str(error)
    texts = {name: line.text(name) for name in ("gpu", "model", "engine", "source")}
    texts["engine"] = f"{texts['engine']} {line.text('engine_version')}".strip()
    return Row(
        where=line.cells.where,
        run=line.cells.where,
        stage=0,
        labels={name: text for name, text in (texts | {"method": method_of(line)}).items() if text},
        measured=measured,
        setting=setting,
        staged=False,
        reason=reason,
        plain=plain,
        note="the GPU is not stated" if _unstated(line) and line.metric != "acceptance_length" and setting else "",
        assumptions=tuple(assumptions),
        given=given,
        by_sign="the engine batched as it liked" if "client label" in line.text("batch_or_concurrency") else "",
    )


def _setting(line: Line, assumptions: list[str]) -> Setting:
    """The server without speculation, and what it was sent."""
    engine = engine_of(line.text("engine") or "vllm")
    if engine is None:
        raise NotSimulatedError(f"unknown engine {line.text('engine')!r}")
    old = engine == "vllm" and bool(_V0.match(line.text("engine_version")))
    model, weights = _model(line.text("model"))
    gpu = _gpu(line, assumptions)
    load = _benchmark(line, model)
    if line.metric != "acceptance_length":  # which lengths have no part in
        assumptions.append(load.assumption)
    return Setting(
        engine=engine,
        model=model,
        gpu=gpu,
        tensor_parallel=line.cells.count("tp", "n_gpus") or 1,
        weights=weights,
        kv_cache="auto",
        max_num_seqs=load.max_num_seqs or 256,
        max_num_batched_tokens=8192,
        max_model_len=None,
        gpu_memory_utilization=0.9,
        prefix_caching=False,
        async_scheduling=_asynchronous(engine, line.text("engine_version"), assumptions),
        host="vllm-v0" if old else "vllm",
        front_end=line.metric == "tpot_mean_ms",  # rates are of engines called in their own process
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        prompt_pool=None,
        load=load.load,
    )


def _speculating(
    line: Line, plain: Setting, length: float | None, assumptions: list[str]
) -> tuple[Setting, tuple[str, ...]]:
    """The server of `plain` as it speculated, and which of the row's metrics went into it."""
    proposer, given = proposer_of(line, plain.model, length, assumptions)
    if plain.engine == "vllm":
        return replace(plain, speculation=proposer), given
    assumptions.append(f"{line.text('engine')}: speculates under vLLM's scheduler, the only one that does here")
    seqs, asynchronous = plain.max_num_seqs, plain.async_scheduling
    if plain.engine == "sglang":
        assumptions.append("SGLang: speculates with 48 sequences at most and without overlap, its defaults (0.5)")
        seqs, asynchronous = min(seqs, _SGLANG_SEQS), False
    server = replace(plain, engine="vllm", max_num_seqs=seqs, async_scheduling=asynchronous)
    return replace(server, speculation=proposer), given


def _model(text: str) -> tuple[str, str]:
    """(model, weights) of `BF16 Llama-3.3-70B + public EAGLE3`."""
    stated = re.match(r"(bf16|fp16|fp8|int8)\s+", text.lower())
    name = re.split(r"\s+\+", text[stated.end() :] if stated else text)[0].strip()
    return load_model(name).name, stated[1] if stated else "auto"


def _gpu(line: Line, assumptions: list[str]) -> str:
    if _unstated(line):
        assumptions.append(f"GPU not stated: {_UNSTATED_GPU}")
        return _gpu_name(_UNSTATED_GPU)
    name = re.sub(r"\s*\(.*\)", "", line.text("gpu"))
    if name != line.text("gpu"):
        assumptions.append(f"GPU: {line.text('gpu')}")
    bare = name.removeprefix("NVIDIA ")
    if bare in _TWINS and (line.cells.count("tp", "n_gpus") or 1) == 1:
        assumptions.append(f"{bare}: computes as {_TWINS[bare]} does")
        name = _TWINS[bare]
    return _gpu_name(name)


@cache
def _gpu_name(name: str) -> str:
    return load_gpu(name).name


def _unstated(line: Line) -> bool:
    return not line.text("gpu") or "not stated" in line.text("gpu").lower()


def _benchmark(line: Line, model: str) -> Benchmark:
    if "client label" in line.text("batch_or_concurrency"):
        found = offline(line.text("provenance"))
        if found is None:
            raise NotSimulatedError("what an offline run of that kind sends is not known")
        return found
    clients = line.clients
    if clients is None and line.metric != "acceptance_length":
        raise NotSimulatedError(f"batch_or_concurrency {line.text('batch_or_concurrency')!r} is no number of clients")
    return closed_loop(line.text("dataset"), clients or 1, model)


def _asynchronous(engine: Engine, version: str, assumptions: list[str]) -> bool:
    """Whether the engine formed a step while the one before ran. vLLM did from 0.14 on, SGLang and TensorRT-LLM do."""
    number = re.match(r"0\.(\d+)", version)
    if engine != "vllm" or (number and int(number[1]) >= 14):
        return True
    if _V0.match(version):
        assumptions.append("vLLM V0: V1's scheduler stands in, without asynchronous scheduling, with V0's host")
    else:
        assumptions.append("vLLM V1 before 0.14: without asynchronous scheduling")
    return False
