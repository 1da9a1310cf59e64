"""The drafter's KV of prompts that are computed in one pool and decoded in another.

A prefill instance of vLLM has the same speculative_config as the decode instance: it runs the drafter's layers over the
prompt, too, and their KV is transferred with the rest. So prefill pools compute and hand over the KV of the decode
pools' drafter, though the scenario sets no speculation for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from simulator.common.notes import Note
from simulator.scenario.schema import LinearCost, Pool
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Mtp, Speculation


class PromptDrafting(NamedTuple):
    """Drafter of decode pools, for which prefill pools compute the KV of prompts. `path` is its key in the scenario."""

    settings: Speculation
    path: str

    def on(self, gpus: int) -> Speculation:
        """Return the settings for a pool with that many GPUs a rank, which a draft model cannot exceed."""
        settings = self.settings
        if isinstance(settings, DraftModel) and settings.tensor_parallel is not None:
            return replace(settings, tensor_parallel=min(settings.tensor_parallel, gpus))
        return settings


def prompt_drafting(pools: Mapping[str, Pool]) -> tuple[PromptDrafting | None, list[Note]]:
    """Return the drafter of decode pools for which prefill pools compute the KV of prompts, and notes.

    The drafter is None if no decode pool drafts with KV, or if prefill pools cannot compute that KV; a note then tells
    the reason.
    """
    found: dict[str, Speculation] = {}
    for name, pool in pools.items():
        if pool.role == "decode" and isinstance(pool.speculation, DraftModel | Eagle | Eagle3 | Mtp):
            found[name] = pool.speculation
    if not found:
        return None, []
    reason = _reason(list(found.values()), [pool for pool in pools.values() if pool.role == "prefill"])
    if reason is None:
        name, settings = next(iter(found.items()))
        return PromptDrafting(settings, f"deployment.pools.{name}.speculation"), []
    text = (
        f"the drafter's KV of prompts is neither computed nor handed over, as if it took no time: {reason}; an engine "
        "would compute it, or accept fewer drafts than `acceptance` says"
    )
    return None, [Note("drafter_kv_not_computed", text)]


def _reason(found: list[Speculation], prefill: list[Pool]) -> str | None:
    """Return the reason why prefill pools do not compute the drafter's KV of prompts; None if they do."""
    if any(_drafter(settings) != _drafter(found[0]) for settings in found):
        return "decode pools draft with different drafters"
    if isinstance(found[0], DraftModel) and found[0].gpu is not None:
        return "the draft model is on GPUs of its own, which prefill pools do not have"
    if any(isinstance(pool.cost_model, LinearCost) for pool in prefill) and found[0].pass_time is None:
        return "the linear cost model of a prefill pool has no times of a drafter"
    return None


def _drafter(settings: Speculation) -> tuple[object, ...]:
    """Return the settings in which different drafters differ."""
    if isinstance(settings, DraftModel):
        return settings.TAG, settings.model, settings.weights, settings.gpu
    return settings.TAG, settings.draft_vocab if isinstance(settings, Eagle3) else None
