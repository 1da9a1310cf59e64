"""Defaults of engines that depend on the GPU, or on other settings of the pool than the scheduler's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.scenario.schedulers import SglangScheduler, VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scenario.speculation import Medusa, Ngram

#: Least memory of GPUs with larger batches; A100s keep the smaller ones, since they lost throughput (vllm#17885).
_LARGE_GPU_BYTES = 70 * 2**30
#: (max_num_seqs, max_num_batched_tokens) of vLLM's API server on such GPUs, and on others: the same since 0.9
#: (`EngineArgs.get_batch_defaults`).
_LARGE_GPU_BATCH, _OTHER_GPU_BATCH = (1024, 8192), (256, 2048)
#: Whether a version schedules the next step while the GPU runs the current one, if the pool's settings allow it.
_ASYNCHRONOUS = {"vllm-0.33": True, "vllm-0.10": False}
#: `max_running_requests` of SGLang 0.5 without speculation and with it; its overlap scheduler is off with speculation
#: (`ServerArgs._handle_speculative_decoding`).
_SGLANG_SEQS, _SGLANG_SPECULATING_SEQS = 1024, 48


def with_engine_defaults(pool: Pool, gpu: str, hbm_bytes: int, max_position: int) -> Pool:
    """Fill in the scheduler settings that the scenario does not give with the engine's defaults.

    `gpu` is the GPU's name, `hbm_bytes` its memory, `max_position` the longest context of the model.
    """
    scheduler, defaults = pool.scheduler, dict[str, Any]()
    if isinstance(scheduler, VllmScheduler):
        defaults = _vllm_defaults(pool, scheduler, gpu, hbm_bytes, max_position)
    elif isinstance(scheduler, SglangScheduler):
        plain = pool.speculation is None
        defaults = {
            "max_num_seqs": _SGLANG_SEQS if plain else _SGLANG_SPECULATING_SEQS,
            "async_scheduling": plain,
        }
    left_out = {name: value for name, value in defaults.items() if getattr(scheduler, name) is None}
    return replace(pool, scheduler=replace(scheduler, **left_out)) if left_out else pool


def _vllm_defaults(pool: Pool, scheduler: VllmScheduler, gpu: str, hbm_bytes: int, max_position: int) -> dict[str, Any]:
    """Return the defaults of vLLM's settings that depend on the GPU and the pool."""
    large = hbm_bytes >= _LARGE_GPU_BYTES and not gpu.startswith("a100")
    asked = scheduler.max_model_len
    tokens, seqs = _batch_sizes(scheduler, large, asked if isinstance(asked, int) else max_position)
    return {
        "async_scheduling": can_schedule_ahead(pool) and schedules_ahead(scheduler.version),
        "enable_prefix_caching": pool.memory.allocation == "paged",
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
    }


def schedules_ahead(version: str) -> bool:
    """Return whether a version of vLLM schedules asynchronously by default."""
    return _ASYNCHRONOUS.get(version, False)


def can_schedule_ahead(pool: Pool) -> bool:
    """Return whether vLLM can schedule the next step of a pool while the GPU runs the current one.

    It cannot with pipeline parallelism, nor with drafts that are not computed on the GPU (`VllmConfig`).
    """
    return pool.pipeline_parallel == 1 and not isinstance(pool.speculation, Ngram | Medusa)


def _batch_sizes(scheduler: VllmScheduler, large: bool, context: int) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) of a server, given or by the defaults of `EngineArgs`.

    Without chunked prefill the token budget is at least the longest prompt. It is at most the contexts of all
    sequences, and the number of sequences is at most the token budget.
    """
    default_seqs, tokens = _LARGE_GPU_BATCH if large else _OTHER_GPU_BATCH
    if scheduler.max_num_batched_tokens is not None:
        tokens = scheduler.max_num_batched_tokens
    else:
        if not scheduler.enable_chunked_prefill:
            tokens = max(tokens, context)
        tokens = min(tokens, (scheduler.max_num_seqs or default_seqs) * context)
    return tokens, scheduler.max_num_seqs or min(default_seqs, tokens)
