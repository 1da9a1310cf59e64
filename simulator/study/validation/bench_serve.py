"""Reading the JSON that `vllm bench serve --save-result --save-detailed` writes: a load and what it measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cost_models import CostModelError, load_gpu, load_model
from simulator.errors import InputError
from simulator.scenario.traffic import Fixed
from simulator.study.validation.setting import Detail, Load, Row, Setting

_NS = 10**9


def read_bench(path: Path, given: Mapping[str, str]) -> Row:
    """The one row of a result file.

    `given` says what the file does not: `gpu`, and if they differ from the defaults `tensor_parallel` and `model`.

    Raises:
        InputError: no such file, no JSON object, no per-request detail, arrays of different lengths, an unknown model
            or GPU.
    """
    data = _read(path)
    model, gpu = given.get("model") or data.get("model_id"), given.get("gpu")
    if not isinstance(model, str):
        raise InputError(f"{path}: model_id: missing; say which model it was with --model")
    if gpu is None:
        raise InputError(f"{path}: a result of `vllm bench serve` does not say which GPU it ran on: give --gpu")
    prompts = _column(path, data, "input_lens")
    outputs, ttfts = _column(path, data, "output_lens"), _column(path, data, "ttfts")
    errors = data.get("errors") or [""] * len(prompts)
    itls = data.get("itls")
    if not len(prompts) == len(outputs) == len(ttfts) == len(errors):
        raise InputError(f"{path}: input_lens, output_lens, ttfts and errors have different lengths")
    if not isinstance(itls, list) or len(itls) != len(prompts):
        raise InputError(f"{path}: itls: expected a list for each of the {len(prompts)} requests")
    good = np.array([not error for error in errors]) & (outputs > 0)
    if not good.any():
        raise InputError(f"{path}: every request failed")
    decode = np.array([math.fsum(gaps) for gaps in itls])
    begins = _begins(path, data, len(prompts))
    concurrency = data.get("max_concurrency")
    # Behind a limit a request is sent when another has ended: the simulation finds out when that is.
    sent = np.zeros(len(prompts)) if concurrency and data.get("request_rate") in (None, "inf", math.inf) else begins
    try:
        known, hardware = load_model(model), load_gpu(gpu)
    except CostModelError as error:
        raise InputError(f"{path}: {error}") from None
    detail = Detail(
        tuple(int(begin * _NS) for begin in (sent - sent.min())[good]),
        tuple(int(n) for n in prompts[good]),
        tuple(int(n) for n in outputs[good]),
        concurrency=int(concurrency) if concurrency else None,
    )
    setting = Setting(
        model=known.name,
        gpu=hardware.name,
        tensor_parallel=int(given.get("tensor_parallel", "1")),
        weights=given.get("weights", "auto"),
        kv_cache=given.get("kv_cache", "auto"),
        max_num_seqs=int(given.get("max_num_seqs", "1024")),
        max_num_batched_tokens=int(given.get("max_num_batched_tokens", "8192")),
        max_model_len=None,
        gpu_memory_utilization=0.9,
        prefix_caching=False,
        async_scheduling=True,
        host=given.get("host", "vllm"),
        front_end=True,
        prompt_tokens=Fixed(max(1, round(float(prompts[good].mean())))),
        output_tokens=Fixed(max(1, round(float(outputs[good].mean())))),
        prompt_pool=None,
        load=Load(int(good.sum()), detail=detail),
    )
    assumptions = ["prompts share no prefixes"]
    if not good.all():
        assumptions.append(f"{int((~good).sum())} failed requests left out")
    return Row(
        where=str(path),
        run=str(path),
        stage=0,
        staged=False,
        labels={"gpu": gpu, "model": model, "engine": "vllm"},
        measured=_metrics(ttfts[good], decode[good], outputs[good], begins[good], prompts[good]),
        setting=setting,
        assumptions=tuple(assumptions),
    )


def _metrics(ttft: Any, decode: Any, outputs: Any, begins: Any, prompts: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    several = outputs > 1
    columns = {"ttft": ttft, "e2e": ttft + decode, "tpot": (decode / np.maximum(outputs - 1, 1))[several]}
    for name, seconds in columns.items():
        if len(seconds):
            found[f"{name}_mean_ms"] = float(seconds.mean() * 1e3)
            for percent in (50, 90, 95, 99):
                found[f"{name}_p{percent}_ms"] = float(np.percentile(seconds, percent) * 1e3)
    if several.any():
        found["itl_mean_ms"] = float(decode[several].sum() / (outputs[several] - 1).sum() * 1e3)
    lasted = float((begins + ttft + decode).max() - begins.min())
    found["req_per_s"] = len(ttft) / lasted
    found["output_tok_s"] = float(outputs.sum()) / lasted
    found["total_tok_s"] = float(outputs.sum() + prompts.sum()) / lasted
    return found


def _begins(path: Path, data: Mapping[str, Any], count: int) -> Any:
    """When each request was sent, in seconds; all at once where the file, of an older version, does not say."""
    if "start_times" in data:
        begins = _column(path, data, "start_times")
        if len(begins) != count:
            raise InputError(f"{path}: start_times: expected {count} numbers, found {len(begins)}")
        return begins
    rate = data.get("request_rate")
    if rate in (None, "inf", math.inf) or data.get("max_concurrency"):
        return np.zeros(count)
    raise InputError(f"{path}: start_times: missing, and request_rate {rate} alone does not say when requests came")


def _column(path: Path, data: Mapping[str, Any], name: str) -> Any:
    values = data.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(f"{path}: {name}: missing; run `vllm bench serve` with --save-result --save-detailed")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise InputError(f"{path}: {name}: expected numbers")
    return np.array(values, float)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: expected one JSON object")
    return data
