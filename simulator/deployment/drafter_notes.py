"""Notes on a pool's drafter: the source of its times, and differences from a real engine."""

from __future__ import annotations

from cost_models import ModelSpec, parameters
from cost_models.kernels.files import calibrated_path
from simulator.common.notes import Note
from simulator.deployment.drafter import Drafter
from simulator.scenario.schema import Pool, RooflineCost
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Mtp, Ngram, Speculation
from simulator.scheduling import limits

#: Draft model and target of the measured steps, which ran on one GPU with one sequence at a time.
_MEASURED_PAIR = ("qwen3-1.7b", "qwen3-32b")


def drafter_notes(drafter: Drafter, pool: Pool, target: ModelSpec, kv_blocks: int, max_model_len: int) -> list[Note]:
    """Return the notes on the drafter of a pool that speculates; an empty list for other pools.

    `kv_blocks` is the number of blocks that fit beside the target's weights, or that the scenario sets.
    """
    settings, notes = pool.speculation, []
    if settings is None:
        return []
    if isinstance(pool.cost_model, RooflineCost) and settings.pass_time is None:
        notes += _time_notes(settings, drafter, pool, target)
    if isinstance(settings, Mtp) and not target.mtp_layers:
        text = (
            f"the published checkpoint of {target.name} has no layer for multi-token prediction: it must be trained; "
            "here it is taken to be like the model's last layer"
        )
        notes.append(Note("no_mtp_layer", text))
    if drafter.own_blocks is not None and kv_blocks > drafter.own_blocks:
        notes.append(_own_blocks_note(drafter.own_blocks, pool, kv_blocks))
    return notes if drafter.model is None else notes + _model_notes(drafter.model, target, max_model_len)


def _time_notes(settings: Speculation, drafter: Drafter, pool: Pool, target: ModelSpec) -> list[Note]:
    notes = []
    if isinstance(settings, DraftModel) and not _as_measured(drafter, pool, target):
        text = (
            "a draft model was measured once: Qwen3-1.7B for Qwen3-32B on one GPU, one sequence at a time. With other "
            "models, GPUs and batches its steps follow from that; those of one run with 32 sequences are predicted a "
            "fifth too short (docs/accuracy.md)"
        )
        notes.append(Note("drafting_not_measured", text))
    elif not _measured(settings):
        text = (
            "the time that an engine needs for this way of proposing, beside the drafter's kernels, was not measured: "
            "its terms are those fitted to chains of EAGLE, EAGLE-3 and a draft model (docs/accuracy.md)"
        )
        notes.append(Note("drafting_not_measured", text))
    if drafter.gpus and drafter.gpu is not None and not calibrated_path(drafter.gpu).is_file():
        text = f"the kernels of {drafter.gpu.name}, on which only the draft model runs, are estimates, not measured"
        notes.append(Note("not_calibrated", text))
    return notes


def _measured(settings: Speculation) -> bool:
    """Return whether the terms of proposing were fitted to such runs, or hardly matter: a lookup takes 0.01 ms."""
    return isinstance(settings, DraftModel | Ngram) or (isinstance(settings, Eagle | Eagle3) and not settings.tree)


def _as_measured(drafter: Drafter, pool: Pool, target: ModelSpec) -> bool:
    """Return whether a draft model is used as in the measured runs."""
    assert drafter.model is not None
    one_gpu = pool.tensor_parallel == drafter.tensor_parallel == 1 and not drafter.gpus
    pair = (drafter.model.name, target.name)
    return pair == _MEASURED_PAIR and one_gpu and limits(pool.scheduler).max_num_seqs == 1


def _own_blocks_note(own_blocks: int, pool: Pool, kv_blocks: int) -> Note:
    """Return the note that the draft model's own GPUs hold fewer KV blocks than the target's."""
    fits = f"the KV of {own_blocks:,} blocks fits beside the draft model's weights on its own GPUs"
    if pool.memory.kv_blocks is not None:
        return Note("kv_blocks_exceed_memory", f"kv_blocks {kv_blocks:,} are too many: {fits}")
    return Note("draft_kv_limits", f"{fits}, not the {kv_blocks:,} that fit on the target's: the pool has no more")


def _model_notes(model: ModelSpec, target: ModelSpec, max_model_len: int) -> list[Note]:
    """Return the notes on a draft model that does not suit its target."""
    notes = []
    if parameters(model).total >= parameters(target).total:
        text = f"draft model {model.name} is no smaller than {target.name}: each draft takes as long as a plain step"
        notes.append(Note("draft_not_smaller", text))
    if model.max_position < max_model_len:
        text = (
            f"{model.name} was made for {model.max_position:,} tokens and max_model_len is {max_model_len:,}: vLLM "
            "drafts nothing in steps with a longer context, which is not simulated"
        )
        notes.append(Note("draft_context", text))
    return notes
