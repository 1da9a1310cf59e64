"""Notes on a resolved deployment: the sources of its numbers, and engine behaviour that is not simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_models import GpuSpec, KvCapacity, ModelSpec, Roofline, SpeculativeCost, StagedRoofline
from cost_models.kernels.files import calibrated_path, shipped_path
from cost_models.library import gpu_file, host_file, is_shipped
from simulator.common.notes import Note
from simulator.deployment.context import context_notes, sampling_notes
from simulator.deployment.drafter import Drafter
from simulator.engine.service import Service
from simulator.scenario.schema import Pool, RooflineCost

#: Most parts of a deployment that a note names.
_SHOWN = 4


def pool_notes(
    pool: Pool, service: Service, model: ModelSpec, capacity: KvCapacity | None, drafter: Drafter
) -> tuple[Note, ...]:
    """Return the notes on a pool."""
    notes, cost, max_model_len = [], service.cost, service.max_model_len
    given = pool.memory.kv_blocks
    if given is not None and capacity is not None and given > capacity.blocks:
        text = f"kv_blocks {given:,} are more than the {capacity.blocks:,} that fit beside the weights on these GPUs"
        notes.append(Note("kv_blocks_exceed_memory", text))
    target = cost.target if isinstance(cost, SpeculativeCost) else cost
    if isinstance(target, Roofline | StagedRoofline):
        assert service.gpu_spec is not None
        drafted = cost.proposer.outside if isinstance(cost, SpeculativeCost) else ()
        notes += _cost_notes(pool, service.gpu_spec, target, drafted)
    notes += [Note("model_config", text) for text in model.notes]
    notes += context_notes(pool, model, service.kv_blocks * pool.pipeline_parallel, max_model_len)
    notes += sampling_notes(pool, model, capacity, max_model_len)
    if not service.records_stalls(pool):
        text = (
            "the time that prefill chunks add to steps of pipeline stages, or of ranks that step together, is not "
            "separated: it counts as decode, and there is no stall_ms"
        )
        notes.append(Note("stall_not_told", text))
    if service.lockstep and getattr(pool.scheduler, "version", None) == "vllm-0.10":
        text = (
            "vLLM before 0.11 runs the dummy batches of ranks without a request outside CUDA graphs, so that steps "
            "with an idle rank take up to four times as long (vllm-project/vllm#25407); they are simulated as in later "
            "versions"
        )
        notes.append(Note("idle_ranks_captured", text))
    fitting = capacity.blocks if given is None and capacity is not None else service.kv_blocks
    if pool.speculation is not None:
        from simulator.deployment.drafter_notes import drafter_notes

        notes += drafter_notes(drafter, pool, model, fitting, max_model_len)
    return tuple(notes)


def _cost_notes(pool: Pool, gpu: GpuSpec, cost: Roofline | StagedRoofline, drafted: Sequence[str]) -> list[Note]:
    """Return notes on step times that do not come from measurements; `drafted` lists those of the proposer."""
    law, notes = pool.cost_model, []
    assert isinstance(law, RooflineCost)
    own = _own_files(pool, law, gpu)
    if own:
        notes.append(Note("own_files", f"times come from your own files, not from shipped ones: {'; '.join(own)}"))
    if not cost.calibrated:
        text = (
            f"the kernels of {pool.gpu} are estimates, not measured ones: expect latencies 10-30% off, or calibrate it "
            "with `servesim calibrate` (cost_model.calibration)"
        )
        notes.append(Note("not_calibrated", text))
    if "int4" in cost.formats:
        text = (
            "weights in int4 (AWQ, GPTQ) are read at 4 bits and multiplied at the rate of BF16: kernels that unpack "
            "them were not measured, and measured runs take up to twice as long a token (docs/accuracy.md)"
        )
        notes.append(Note("int4_weights", text))
    outside = [*cost.outside, *drafted]
    if outside:
        shown = "; ".join(outside[:_SHOWN])
        more = f"; and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
        text = f"outside the measured range, extrapolated in proportion to the physical bound: {shown}{more}"
        notes.append(Note("outside_calibrated_range", text))
    if law.host == "none":
        text = "the time of the host is taken as 0 (cost_model.host): steps and TTFT are those of the kernels alone"
        notes.append(Note("no_host_time", text))
    return notes


def _own_files(pool: Pool, law: RooflineCost, gpu: GpuSpec) -> list[str]:
    """Return the user's own files from which the costs are computed, as texts."""
    files = {"GPU": gpu_file(pool.gpu)}
    if law.calibration not in ("none", "shipped"):
        files["calibration"] = calibrated_path(gpu) if law.calibration == "auto" else Path(law.calibration)
    if law.host != "none":
        files["host model"] = host_file(law.host)
    shipped = {shipped_path(gpu)}
    return [f"{what} {path}" for what, path in files.items() if path not in shipped and not is_shipped(path)]
