"""The decodes of a lazy batch as tables of totals.

A sequence that starts to decode before step s with c computed tokens has computed c + (t - s) before step t, so that
`base` = c - s describes it: it lacks a block in step t if base + t is a multiple of the block size, which a table of
phases counts for all sequences; the step of its last token is known from the start, and kept in a table by step; and
the total context grows by the number of decodes in each step. Its tokens are a range of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from cost_models.shape import BatchShape
from simulator.engine.batches.base import BatchBase
from simulator.engine.batches.interface import BatchContext, Step
from simulator.scheduling import SequenceState


class Decode:
    """The decode of one sequence: `computed` is `base` + step; steps `first` to `last` produce its tokens.

    `leaves_early`: the scheduler knows the last step beforehand, and the sequence stops decoding when it is formed.
    `paused_row`: the row of the paused step that produces the first token; -1 if it is not a paused one.
    """

    __slots__ = ("base", "first", "last", "leaves_early", "paused_row")

    def __init__(self, base: int, first: int, last: int, leaves_early: bool, paused_row: int = -1) -> None:
        self.base = base
        self.first = first
        self.last = last
        self.leaves_early = leaves_early
        self.paused_row = paused_row


class WindowTotals:
    """Total of the keys to which decodes attend within a sliding window of `window` tokens.

    A decode of `base` (see `Decode`) whose window is not full yet attends to one key more in each step.
    """

    __slots__ = ("_full_at", "context", "growing", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.context = 0
        self.growing = 0  # number of decodes whose window is not full yet
        self._full_at: dict[int, int] = {}  # by step: number of decodes whose window is full from then on

    def join(self, base: int, step: int) -> None:
        """Add a decode from step `step` on."""
        computed = base + step
        self.context += min(computed, self.window)
        if computed < self.window:
            self.growing += 1
            full_at = self.window - base
            self._full_at[full_at] = self._full_at.get(full_at, 0) + 1

    def leave(self, base: int, step: int) -> None:
        """Remove a decode from step `step` on."""
        computed = base + step
        self.context -= min(computed, self.window)
        if computed < self.window:
            self.growing -= 1
            full_at = self.window - base
            self._full_at[full_at] -= 1
            if not self._full_at[full_at]:
                del self._full_at[full_at]

    def advance(self, step: int) -> int:
        """Advance to step `step`; return the keys to which its decodes attend."""
        self.context += self.growing
        if self._full_at:
            self.growing -= self._full_at.pop(step + 1, 0)
        return self.context


class DecodeTables(BatchBase):
    """The part of the lazy batch that counts decodes, and runs steps in which every sequence decodes."""

    def __init__(self, context: BatchContext) -> None:
        super().__init__(context)
        pool = context.pool
        self.decodes = 0
        self._running: dict[int, SequenceState] = {}  # by request, in order of admission
        self.running = 0  # their number
        self._decoding: dict[int, Decode] = {}  # by request
        self._ending: dict[int, list[SequenceState]] = {}  # by step: sequences whose last token it produces
        self._phases = [0] * pool.block_size  # number of decodes, by the phase of their blocks
        self._lacking = [0] * pool.block_size if pool.reserves else self._phases  # blocks that steps need, by phase
        self._context = 0  # computed tokens of all decodes
        self._windows = WindowTotals(context.window) if context.window else None
        self._pauses: list[int] = []  # for each paused row, the number of the step after it

    @property
    def unfinished(self) -> int:
        return self.running + len(self.waiting)

    # --- the policy's view

    @property
    def prefilling_last(self) -> bool:
        newest = reversed(self._running.values())
        return all(next(newest) is seq for seq in reversed(self.prefilling))

    @property
    def decode_tokens(self) -> int:
        return self.decodes

    @property
    def decode_steps(self) -> int:
        return self.step

    def decode_blocks(self) -> int:
        return self._lacking[self.step % self.pool.block_size]

    def oldest_first(self) -> Iterator[SequenceState]:
        for seq in self._running.values():
            if seq.decoding:
                self._settle(seq)
            yield seq

    # --- coasting

    def next_decodes(self) -> BatchShape:
        """Return the shape of the next step if every sequence decodes, without other changes."""
        context = self._context + self.decodes
        return BatchShape(self.decodes, context, self._windows.context if self._windows else 0, (), 0, self.decodes)

    def lacking_blocks(self, steps: int) -> list[int]:
        """Return the number of blocks that the decodes lack in each of the next steps, without other changes."""
        lacking, size, first = self._lacking, self.pool.block_size, self.step
        return [lacking[step % size] for step in range(first, first + steps)]

    def quiet_steps(self, most: int) -> int:
        """Return the number of next steps, up to `most`, with decodes only: no sequence ends, and blocks suffice."""
        first, ending, lacking, size = self.step, self._ending, self._lacking, self.pool.block_size
        if (
            self.waiting
            or first in ending
            or self.prefilling
            or not self.decodes
            or (self._windows and self._windows.growing)
        ):
            return 0
        free = self.pool.free
        for step in range(first, first + most):
            free -= lacking[step % size]
            if free < 0 or step in ending:
                return step - first
        return most

    def coast(self, steps: int) -> Step:
        """Form and complete `steps` quiet steps; return the last one."""
        self.pool.take(sum(self.lacking_blocks(steps)))
        self.step += steps
        self.completed += steps
        self._context += steps * self.decodes
        self.known_tokens += steps * self.decodes
        in_window = self._windows.context if self._windows else 0
        return Step(self.step - 1, BatchShape(self.decodes, self._context, in_window, (), 0, self.decodes), ())

    # --- the tables

    def _join(self, seq: SequenceState, decode: Decode) -> None:
        """Add `seq` to the decodes from the next step on."""
        self.decodes += 1
        self._context += decode.base + self.step
        self._phases[-decode.base % self.pool.block_size] += 1
        if self._windows is not None:
            self._windows.join(decode.base, self.step)

    def _leave(self, seq: SequenceState) -> None:
        """Remove `seq` from the decodes from the next step on."""
        base = self._decoding[seq.index].base
        self.decodes -= 1
        self._context -= base + self.step
        self._phases[-base % self.pool.block_size] -= 1
        if self._windows is not None:
            self._windows.leave(base, self.step)

    def _settle(self, seq: SequenceState) -> None:
        """Update the fields and the blocks of a decoding sequence.

        The blocks that it fills are registered when that step is formed, with asynchronous scheduling when the next one
        is formed, since the tokens are known then.
        """
        computed = self._decoding[seq.index].base + self.step
        seq.computed = computed
        seq.target = computed + 1
        if seq.blocks:  # else the policy has just released them
            self.pool.settle(seq, computed, computed - self.depth + 1)

    def _unlist(self, seq: SequenceState, last: int) -> None:
        """Remove a sequence from those that end with step `last`."""
        listed = self._ending[last]
        listed.remove(seq)
        if not listed:
            del self._ending[last]

    def _record(self, index: int, decode: Decode, last: int) -> None:
        """Log the tokens of a decode from its first one to that of step `last`, as a range of rows."""
        first = decode.first
        if self._pauses:
            begin = self._row(first) if decode.paused_row < 0 else decode.paused_row
            first, last = begin, begin if last == first else self._row(last)
        self._setup.log.segment(index, self.number, first, last)

    def _row(self, step: int) -> int:
        return step + bisect_right(self._pauses, step)
