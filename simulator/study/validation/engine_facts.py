"""The engine that was simulated for a measured row, as data."""

from __future__ import annotations

from typing import Any

from cost_models.dtypes import kv_type
from simulator.scenario import Scenario
from simulator.scenario.schedulers import VllmScheduler
from simulator.study.validation.setting import Setting


def engine_facts(scenario: Scenario, setting: Setting, kv_blocks: int) -> dict[str, Any]:
    """The engine of a scenario with one pool, whose every setting is filled in."""
    (pool,) = scenario.deployment.pools.values()
    scheduler = pool.scheduler
    return {
        "policy": scheduler.TAG,
        **({"version": scheduler.version} if isinstance(scheduler, VllmScheduler) else {}),
        "async_scheduling": getattr(scheduler, "async_scheduling", False),
        "enable_prefix_caching": getattr(scheduler, "enable_prefix_caching", False),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "kv_cache": kv_type(scenario.model.kv_cache),
        "model": setting.model,
        "gpu": setting.gpu,
        "tensor_parallel": setting.tensor_parallel,
        "weights": setting.weights,
        "kv_blocks": kv_blocks,
        "gpu_memory_utilization": setting.gpu_memory_utilization,
        "host": setting.host,
        "front_end": setting.front_end,
    }
