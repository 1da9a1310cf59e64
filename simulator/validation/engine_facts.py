"""Description of the engine that was simulated for a measured row, as data."""

from __future__ import annotations

from typing import Any

from simulator.results.schedulers import scheduler_sections
from simulator.scenario import Scenario
from simulator.validation.setting import Setting


def engine_facts(scenario: Scenario, setting: Setting, kv_blocks: int) -> dict[str, Any]:
    """Return the engine of a scenario with one pool, in which all defaults are filled in."""
    scheduler: dict[str, Any] = next(iter(scheduler_sections(scenario).values()))
    return scheduler | {
        "model": setting.model,
        "gpu": setting.gpu,
        "tensor_parallel": setting.tensor_parallel,
        "weights": setting.weights,
        "kv_blocks": kv_blocks,
        "gpu_memory_utilization": setting.gpu_memory_utilization,
        "host": setting.host,
        "front_end": setting.front_end,
    }
