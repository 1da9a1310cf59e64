"""What a reader must know of a resolved deployment: what its numbers rest on, and what is not simulated."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models import KvCapacity, ModelSpec, Roofline, SpeculativeCost, StagedRoofline
from simulator.engine import Service
from simulator.notes import Note
from simulator.scenario.schema import Pool, RooflineCost
from simulator.study.context import context_notes
from simulator.study.drafter_notes import drafter_notes
from simulator.study.proposers import Drafter

#: Parts of a deployment that a note names.
_SHOWN = 4


def pool_notes(
    pool: Pool, service: Service, model: ModelSpec, capacity: KvCapacity | None, drafter: Drafter
) -> tuple[Note, ...]:
    """The notes of a pool."""
    notes, cost, max_model_len = [], service.cost, service.max_model_len
    asked = pool.memory.kv_blocks
    if asked is not None and capacity is not None and asked > capacity.blocks:
        text = f"kv_blocks {asked:,} are more than the {capacity.blocks:,} that fit beside the weights on these GPUs"
        notes.append(Note("kv_blocks_exceed_memory", text))
    target = cost.target if isinstance(cost, SpeculativeCost) else cost
    if isinstance(target, Roofline | StagedRoofline):
        drafted = cost.proposer.outside if isinstance(cost, SpeculativeCost) else ()
        notes += _cost_notes(pool, target, drafted)
    notes += context_notes(pool, model, service.kv_blocks * pool.pipeline_parallel, max_model_len)
    if not service.stall_told(pool):
        text = (
            "what chunks add to the steps of pipeline stages, or of ranks that step together, is not told apart: it "
            "counts as decode, and there is no stall_ms"
        )
        notes.append(Note("stall_not_told", text))
    fitting = capacity.blocks if asked is None and capacity is not None else service.kv_blocks
    return (*notes, *drafter_notes(drafter, pool, model, fitting, max_model_len))


def _cost_notes(pool: Pool, cost: Roofline | StagedRoofline, drafted: Sequence[str]) -> list[Note]:
    """What the times of steps rest on, where it is not measurements; `drafted` says the same of what proposes."""
    law, notes = pool.cost_model, []
    assert isinstance(law, RooflineCost)
    if not cost.calibrated:
        text = (
            f"the kernels of {pool.gpu} are estimates, not measured ones: expect latencies 10-30% off, or calibrate it "
            "with `servesim calibrate` (cost_model.calibration)"
        )
        notes.append(Note("not_calibrated", text))
    outside = [*cost.outside, *drafted]
    if outside:
        shown = "; ".join(outside[:_SHOWN])
        more = f"; and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
        text = f"beyond what was measured, extrapolated as physics has it: {shown}{more}"
        notes.append(Note("outside_calibrated_range", text))
    if law.host == "none":
        text = "the time of the host is taken as 0 (cost_model.host): steps and TTFT are those of the kernels alone"
        notes.append(Note("no_host_time", text))
    return notes
