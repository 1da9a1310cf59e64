"""The server on which a row of speculative decoding was measured, without its drafts, and the assumptions about it."""

from __future__ import annotations

import re
from functools import cache

from cost_models import load_gpu, load_model
from simulator.validation.assumptions import engine_of
from simulator.validation.cells import NotSimulatedError
from simulator.validation.setting import Engine, Setting
from simulator.validation.speculation.benchmarks import Benchmark, closed_loop, in_one_batch, offline
from simulator.validation.speculation.lines import Line

#: vLLM's first version with its second engine, V1, by default; and the first with asynchronous scheduling by default.
_V1, _ASYNCHRONOUS = (0, 8), (0, 14)
#: GPUs that differ from another one only in NVLink.
_TWINS = {"A800-SXM4-80GB": "A100-SXM4-80GB"}
#: Assumed GPU of rows that do not state it.
_UNSTATED_GPU = "H100"


def server_of(line: Line, assumptions: list[str]) -> Setting:
    """Return the server without speculation, and its load.

    Raises NotSimulatedError, or CostModelError for an unknown model or GPU.
    """
    engine = engine_of(line.text("engine") or "vllm")
    if engine is None:
        raise NotSimulatedError(f"unknown engine {line.text('engine')!r}")
    model, weights = _model(line.text("model"), assumptions)
    gpu = _gpu(line, assumptions)
    load = _benchmark(line, model)
    assumptions.append(load.assumption)
    old = engine == "vllm" and _is_v0(line)
    return Setting(
        engine=engine,
        model=model,
        gpu=gpu,
        tensor_parallel=line.gpus or 1,
        weights=weights,
        kv_cache="auto",
        max_num_seqs=load.max_num_seqs or 256,
        max_num_batched_tokens=8192,
        max_model_len=None,
        gpu_memory_utilization=0.9,
        prefix_caching=False,
        async_scheduling=_asynchronous(engine, line, assumptions),
        host="vllm-v0" if old else "vllm",
        front_end=line.metric.name == "tpot_mean_ms",  # rates are of engines called in their own process
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        prompt_pool=None,
        load=load.load,
    )


def with_format(name: str) -> str:
    """Return the shipped name of a model; with its own ending, such as `-awq`, if that changes the format of weights.

    Raises CostModelError for an unknown model.
    """
    model = load_model(name)
    if model.native_quant == load_model(model.name).native_quant:
        return model.name
    return name.rpartition("/")[2].lower().replace(" ", "-")


def _model(text: str, assumptions: list[str]) -> tuple[str, str]:
    """Return (model, weights) of a text such as `BF16 Llama-3.3-70B + public EAGLE3` or `Qwen3-32B-FP8`."""
    stated = re.match(r"(bf16|fp16|fp8|int8)\s+", text.lower())
    name = with_format(re.split(r"\s+\+", text[stated.end() :] if stated else text)[0].strip())
    if stated is None:
        return name, "auto"
    model = load_model(name)
    if name != model.name and model.native_quant != stated[1]:
        assumptions.append(f"weights: {stated[1]}, as stated before the name; the ending of {name} is ignored")
    return model.name, stated[1]


def _gpu(line: Line, assumptions: list[str]) -> str:
    if not line.gpu:
        assumptions.append(f"GPU not stated: {_UNSTATED_GPU}")
        return _gpu_name(_UNSTATED_GPU)
    name = re.sub(r"\s*\(.*\)", "", line.gpu)
    if name != line.gpu:
        assumptions.append(f"GPU: {line.gpu}")
    bare = name.removeprefix("NVIDIA ")
    if bare in _TWINS and (line.gpus or 1) == 1:
        assumptions.append(f"{bare}: computes as {_TWINS[bare]} does")
        name = _TWINS[bare]
    return _gpu_name(name)


@cache
def _gpu_name(name: str) -> str:
    return load_gpu(name).name


def _benchmark(line: Line, model: str) -> Benchmark:
    if "client label" in line.text("batch_or_concurrency"):
        found = offline(line.text("provenance"))
        if found is None:
            raise NotSimulatedError("the requests of an offline run of that kind are not known")
        return found
    if line.alone:
        return in_one_batch(line.text("dataset"), model)
    if line.clients is None and line.metric.kind != "acceptance_length":
        raise NotSimulatedError(f"batch_or_concurrency {line.text('batch_or_concurrency')!r} is no number of clients")
    return closed_loop(line.text("dataset"), line.clients or 1, model)


def _is_v0(line: Line) -> bool:
    """Return whether the row is of vLLM's first engine, V0: by its name, or by a version before V1 was the default."""
    called = re.search(r"\bv([01])\b(?!\.)", line.text("engine").lower())
    if called:
        return called[1] == "0"
    return line.version is not None and line.version < _V1


def _asynchronous(engine: Engine, line: Line, assumptions: list[str]) -> bool:
    """Return whether the engine scheduled asynchronously: vLLM from 0.14 on, SGLang and TensorRT-LLM always."""
    if engine != "vllm":
        return True
    if _is_v0(line):
        assumptions.append("vLLM V0: simulated with V1's scheduler, without asynchronous scheduling, with V0's host")
        return False
    if line.version is not None and line.version >= _ASYNCHRONOUS:
        return True
    assumptions.append("vLLM V1 before 0.14: without asynchronous scheduling")
    return False
