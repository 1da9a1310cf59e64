"""Proposers that are models: a draft model, the layers of EAGLE and MTP, the heads of Medusa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

from cost_models.drafting.heads import DraftHead
from cost_models.roofline.model import Roofline, build_roofline
from cost_models.shape import BatchShape, Ints
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.host import NO_HOST, HostModel
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import (
    DEFAULT_LIMITS,
    DEFAULT_SOURCES,
    SINGLE_GPU,
    Placement,
    StepLimits,
    TimeSources,
)

_SECOND = 1e9
_new_tuple = tuple.__new__  # a third of the time of calling the class


@dataclass(frozen=True, slots=True)
class DrafterPlace:
    """The GPU and the placement of a drafter, the limits of its target's scheduler, and the sources of times."""

    gpu: GpuSpec
    placement: Placement = SINGLE_GPU
    limits: StepLimits = DEFAULT_LIMITS
    sources: TimeSources = DEFAULT_SOURCES


class Launch(NamedTuple):
    """CPU time to launch a pass, in ns: `fixed`, and `sequence` for each sequence.

    The GPU computes one pass while the next is launched, so that the longer of both counts.
    """

    fixed: int = 0
    sequence: int = 0

    def ns(self, sequences: int) -> int:
        """Return the time to launch a pass over that many sequences."""
        return self.fixed + self.sequence * sequences


NO_LAUNCH = Launch()


class _Run(NamedTuple):
    """Successive `passes` with `width` drafts of each sequence, which attend on average to `beyond` more keys of the
    sequence than the step before them."""

    width: int
    passes: int
    beyond: float


class ModelProposer:
    """A drafter with layers and KV of its own, which proposes one level of drafts per pass, as in vLLM.

    The first pass runs over all tokens of the target's step, including chunks of prompts and drafts: the drafter needs
    the KV of accepted drafts, and the CPU does not yet know which are accepted (vLLM's padded drafter batch). A draft
    model also gets the sampled token (`unshifted`); heads get it in place of the first token. Logits are computed for
    the sequences that have sampled. The next passes run over the drafts of the last level: pass i over those of level i
    - 1, as many of each sequence as `levels` has there. The drafter does not compute the drafts of the last level.

    Passes of equal width are computed together, at the mean of their contexts, which grow by a draft per pass. If the
    drafter has a window, all sequences are assumed to have their mean length, which never gives too few keys. If
    nothing is proposed, only prompts are computed; the drafter's KV of tokens decoded in such steps is not computed
    later.
    """

    __slots__ = ("_first", "_later", "_launch", "_runs", "_unshifted", "outside")

    def __init__(
        self,
        first: Roofline,
        later: Roofline,
        levels: Sequence[int],
        launch: Launch = NO_LAUNCH,
        unshifted: bool = False,
    ) -> None:
        self._first, self._later, self._launch, self._unshifted = first, later, launch, unshifted
        self._runs = [_runs(tuple(levels[:proposed])) for proposed in range(len(levels) + 1)]
        #: See `Proposer`.
        self.outside = list(dict.fromkeys(f"the drafter's {text}" for text in first.outside + later.outside))

    def draft_ns(self, shape: BatchShape) -> int:
        """Return the time of proposing after the step `shape`, in ns.

        Raises ValueError for more drafts than the drafter's levels.
        """
        decodes, keys, _, chunks, _, sampled, drafts, proposed = shape
        if not (proposed and sampled):
            return self._first.step_cost(self._first_pass(shape)).device_ns
        if chunks:
            time, keys = self._first.step_cost(self._first_pass(shape)).device_ns, _keys(shape)
        else:  # no shape is built, which would take as long as its price
            window = self._first.window
            fed = drafts + sampled if self._unshifted else drafts
            time = self._first.decodes_ns(decodes, fed, keys, min(keys, decodes * window) if window else 0, sampled)
        launch, later, window = self._launch.ns(sampled), self._later, self._later.window
        if launch > time:
            time = launch
        for width, passes, beyond in self._runs_of(proposed):
            seen, rows = keys + int(beyond * sampled), sampled * width
            in_window = min(seen, sampled * window) if window else 0
            kernels = later.decodes_ns(sampled, rows - sampled, seen, in_window, rows)
            time += passes * (kernels if kernels > launch else launch)
        return time

    def draft_run_ns(self, decodes: int, drafts: int, proposed: int, keys: Ints) -> Ints:
        """Return `draft_ns` for several steps of 1 decode or more, without chunks, in ns; `keys` is (n,)."""
        first, later, launch = self._first, self._later, self._launch.ns(decodes)
        if not proposed:
            return np.full(len(keys), self.draft_ns(BatchShape(decodes, 0, 0, (), 0, decodes, drafts)), np.int64)
        fed = drafts + decodes if self._unshifted else drafts
        time = np.maximum(
            first.decodes_run_ns(decodes, fed, keys, _within(keys, decodes, first.window), decodes), launch
        )
        for width, passes, beyond in self._runs_of(proposed):
            seen, rows = keys + int(beyond * decodes), decodes * width
            in_window = _within(seen, decodes, later.window)
            kernels = later.decodes_run_ns(decodes, rows - decodes, seen, in_window, rows)
            time += passes * np.maximum(kernels, launch)
        return time

    def lockstep_ns(self, shapes: Sequence[BatchShape]) -> int:
        """Return the time of proposing after a step of all data-parallel ranks, in ns; ranks take each pass
        together."""
        first = self._first.lockstep_cost([self._first_pass(shape) for shape in shapes]).device_ns
        proposing = [shape for shape in shapes if shape.proposed and shape.sampled]
        if not proposing:
            return first
        launch = self._launch.ns(max(shape.sampled for shape in proposing))
        time = max(first, launch)
        for run in self._runs_of(max(shape.proposed for shape in proposing)):
            passes = [self._later_pass(shape.sampled, _keys(shape), run) for shape in proposing]
            time += run.passes * max(self._later.lockstep_cost(passes).device_ns, launch)
        return time

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of proposing on this hardware, in ns."""
        time = self._first.bound_ns(self._first_pass(shape))
        if shape.proposed and shape.sampled:
            for run in self._runs_of(shape.proposed):
                time += run.passes * self._later.bound_ns(self._later_pass(shape.sampled, _keys(shape), run))
        return time

    def _runs_of(self, proposed: int) -> tuple[_Run, ...]:
        if proposed >= len(self._runs):
            raise ValueError(f"proposed: {proposed} levels of drafts from a drafter of {len(self._runs) - 1}")
        return self._runs[proposed]

    def _first_pass(self, shape: BatchShape) -> BatchShape:
        """Return the shape of all tokens of the step, with logits only for sequences that have sampled.

        A `BatchShape` has a row of logits for each draft; these are subtracted here.
        """
        decodes, context, in_window, chunks, _, sampled, drafts, proposed = shape
        if not (proposed and sampled):
            return BatchShape(0, 0, 0, chunks)
        if self._unshifted:
            drafts += sampled
        window = self._first.window
        in_window = min(context, decodes * window) if window else 0
        return _new_tuple(BatchShape, (decodes, context, in_window, chunks, 0, sampled - drafts, drafts, 0))

    def _later_pass(self, sequences: int, keys: int, run: _Run) -> BatchShape:
        keys += int(run.beyond * sequences)
        window = self._later.window
        in_window = min(keys, sequences * window) if window else 0
        return BatchShape(sequences, keys, in_window, (), 0, sequences, sequences * (run.width - 1))


def head_proposer(
    head: DraftHead, levels: Sequence[int], place: DrafterPlace, weights: str, launch: Launch
) -> ModelProposer:
    """Return the proposer of a head of one layer on its target's GPUs; `weights` is the target's format in the
    scenario.

    Raises CostModelError as `build_roofline` does.
    """
    first = _roofline(head.first, place, head.weights(weights))
    later = first if head.later == head.first else _roofline(head.later, place, head.weights(weights))
    return ModelProposer(first, later, levels, launch)


def draft_model_proposer(
    model: ModelSpec, levels: Sequence[int], place: DrafterPlace, weights: str, launch: Launch
) -> ModelProposer:
    """Return the proposer of a draft model. Raises CostModelError as `build_roofline` does."""
    roofline = _roofline(model, place, weights)
    return ModelProposer(roofline, roofline, levels, launch, unshifted=True)


def launch_of(host: HostModel, layers: int, eagle3: bool = False) -> Launch:
    """Return the time to launch a pass of a drafter of that many layers; `eagle3`: it is EAGLE-3's head."""
    fixed = host.draft_pass + host.draft_layer * (layers - 1) + (host.draft_eagle3_pass if eagle3 else 0.0)
    return Launch(round(_SECOND * fixed), round(_SECOND * host.draft_sequence))


def draft_step_ns(host: HostModel, eagle3: bool = False) -> int:
    """Return the time of a step with drafts beside kernels and passes, in ns; see `SpeculativeCost`."""
    return round(_SECOND * (host.draft_step + (host.draft_eagle3_step if eagle3 else 0.0)))


def _roofline(model: ModelSpec, place: DrafterPlace, weights: str) -> Roofline:
    """Return the kernels of a drafter, without the host's part of a step.

    Drafts are its most probable tokens, so that nothing is sampled; times beside kernels are in the terms of proposing.
    """
    host, given, limits = place.sources.host, place.placement, place.limits
    host = replace(NO_HOST, kernel_scale=host.kernel_scale, device_sync=host.device_sync)
    placement = given._replace(weights=weights, expert_parallel=given.expert_parallel and model.moe is not None)
    tokens = StepLimits(limits.max_num_batched_tokens + limits.max_num_seqs, limits.max_num_seqs)
    return build_roofline(model, place.gpu, placement, tokens, place.sources._replace(host=host))


def _runs(levels: tuple[int, ...]) -> tuple[_Run, ...]:
    """Return the passes after the first that make `levels` of drafts: successive ones of each width, with their mean
    context."""
    before = list(accumulate(levels))
    runs, at = [], 0
    for width, group in groupby(levels[:-1]):
        passes = len(list(group))
        runs.append(_Run(width, passes, sum(before[at : at + passes]) / passes))
        at += passes
    return tuple(runs)


def _within(keys: Ints, sequences: int, window: int) -> Ints:
    """Return the keys within the window, if all sequences have their mean length."""
    return np.minimum(keys, sequences * window) if window else np.zeros_like(keys)


def _keys(shape: BatchShape) -> int:
    """Return the keys of the sequences that have sampled: of the decodes, and of the chunks that end their prompt.

    A shape does not tell which chunks end a prompt; the longest are assumed to.
    """
    decodes, keys, _, chunks, _, sampled, _, _ = shape
    ended = sampled - decodes
    if ended <= 0:
        return keys
    if ended < len(chunks):
        return keys + sum(sorted([tokens + context for tokens, context in chunks], reverse=True)[:ended])
    for tokens, context in chunks:
        keys += tokens + context
    return keys
