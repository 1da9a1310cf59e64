"""KV in CPU memory: the choice between loading the blocks of a waiting sequence over PCIe and computing them again.

Before a step is formed, waiting sequences are checked in their order, as far as the step could admit them, as vLLM's
scheduler does with its connector. If CPU memory has blocks after the cached ones of the GPU, they are loaded if the
policy chooses that, and if all known tokens of the sequence fit beside the sequences before it. Meanwhile the sequence
is parked with the blocks, and later ones may be admitted. Loads of a core are sent one after the other, like vLLM's
copies. When the last byte has arrived, the sequence frees the blocks, as the newest of the free list, and returns to
its position in the waiting queue, so that admission finds them like any cached block. Until then, other sequences that
need the same blocks are parked without blocks.

Each sequence is admitted eventually: blocks are held only by running sequences and by loads, which both end, and blocks
are loaded once for each admission. (In vllm#45388 waiting sequences kept loaded blocks which the head of the queue
needed.)

A parked sequence that is withdrawn ends at once; its load goes on, and frees its blocks at its end, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cost_models.shape import BatchShape
from simulator.engine.core import EngineCore
from simulator.engine.logs.transfer_log import OffloadLog
from simulator.engine.transfers.connectors import TransferQueue
from simulator.engine.transfers.kv_transfer import KvLayout
from simulator.engine.transfers.links import Network
from simulator.memory import OffloadingPool
from simulator.scenario.offload import Offload
from simulator.scheduling import ContentSequence, Limits, Plan, SequenceState

Keys = Sequence[int]
#: The bytes and the descriptors of a load, and the function to be called at its end.
Load = tuple[int, int, Callable[[], None]]


class HostLink:
    """The route from CPU memory to the GPUs of a core, with one load at a time (a GPU has one stream for each direction
    of copies)."""

    def __init__(self, network: Network, route: tuple[int, ...], layout: KvLayout) -> None:
        self._network, self._route, self._layout = network, route, layout
        self._bandwidth = min(network.links[link].bytes_per_s for link in route)
        self._queue = TransferQueue[Load](1, self._send)
        self._queued_bytes = 0  # bytes of all loads that have not ended

    @property
    def now_ns(self) -> int:
        """Present time in ns."""
        return self._network.clock._now

    def load_ns(self, blocks: int) -> int:
        """Return the time of a load after all earlier ones, in ns, if the link has no other transfers."""
        size_bytes, descriptors = self._size(blocks)
        queued_bytes = self._queued_bytes + size_bytes
        return self._network.setup_ns(self._route, descriptors) - (-queued_bytes * 10**9 // self._bandwidth)

    def load(self, blocks: int, done: Callable[[], None]) -> int:
        """Load `blocks` blocks after all earlier loads, and call `done` at the end; return the bytes."""
        size_bytes, descriptors = self._size(blocks)
        self._queued_bytes += size_bytes
        self._queue.start((size_bytes, descriptors, done))
        return size_bytes

    def _send(self, load: Load) -> None:
        size_bytes, descriptors, done = load
        self._network.send(self._route, size_bytes, descriptors, partial(self._ended, size_bytes, done))

    def _ended(self, size_bytes: int, done: Callable[[], None]) -> None:
        self._queued_bytes -= size_bytes
        self._queue.done()
        done()

    def _size(self, blocks: int) -> tuple[int, int]:
        return self._layout.size(blocks * self._layout.block_size)


class Offloading:
    """The connector of an engine core with blocks in CPU memory."""

    def __init__(self, core: EngineCore, settings: Offload, limits: Limits, link: HostLink, log: OffloadLog) -> None:
        pool = core.batch.pool
        assert isinstance(pool, OffloadingPool)
        self._core, self._batch, self._pool = core, core.batch, pool
        self._policy, self._link, self._log = settings.policy, link, log
        self._slots, self._budget = limits.max_running, limits.max_num_batched_tokens
        self._reserved = 0  # blocks that parked sequences lack for their known tokens
        self._followers: dict[int, list[SequenceState]] = {}  # by content that is being loaded: sequences that wait
        self._loaded_for: set[int] = set()  # requests with loaded blocks that are not admitted yet
        self._declined: dict[int, int] = {}  # by waiting request: blocks in CPU memory that are not loaded
        self._withdrawn: set[int] = set()  # requests that have ended during their load

    sees_steps = True
    known_tokens = 0  # the batch counts those of parked sequences

    @property
    def pending(self) -> int:
        """Number of waiting sequences."""
        return len(self._batch.waiting)

    def serve(self) -> None:
        """Start loads for the sequences that the next step could admit."""
        batch, pool = self._batch, self._pool
        waiting, at, ahead = batch.waiting, 0, self._reserved
        slots, budget = self._slots - batch.running, self._budget
        while at < len(waiting) and slots > 0 and budget > 0:
            seq = waiting[at]
            assert isinstance(seq, ContentSequence)
            keys = self._sought(seq)
            hits = pool.find(seq, len(keys))
            found = pool.tier.find(keys[len(hits) :])
            fits = pool.fits(seq, hits, seq.target, ahead)
            if found and fits and self._is_loaded(seq, len(hits), len(found)):
                if found[0] in self._followers:
                    batch.park(seq, 0)
                    self._declined.pop(seq.index, None)
                    self._followers[found[0]].append(seq)
                else:
                    self._load(seq, len(hits), found)
                    ahead += self._lacking(seq)
                continue
            self._decline(seq, len(found))
            if not fits:
                break
            ahead += pool.demand(seq, seq.target)
            slots -= 1
            budget -= seq.target - len(hits) * pool.block_size
            at += 1

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Log the blocks in CPU memory that the sequences of the plan compute again."""
        if not self._declined and not self._loaded_for:
            return
        for seq in plan.admitted:
            self._loaded_for.discard(seq.index)
            blocks = self._declined.pop(seq.index, 0)
            if blocks:
                self._open(seq, blocks)

    def withdraw(self, seq: SequenceState) -> bool:
        """Withdraw a parked sequence; False if it is not parked. Blocks that are being loaded are freed afterwards."""
        self._declined.pop(seq.index, None)
        self._loaded_for.discard(seq.index)
        if seq.index not in self._batch.parked:
            return False
        self._batch.withdraw(seq)
        for followers in self._followers.values():
            if seq in followers:
                followers.remove(seq)
                self._batch.free(seq)
                return True
        self._reserved -= self._lacking(seq)
        self._withdrawn.add(seq.index)
        return True

    def _sought(self, seq: ContentSequence) -> Keys:
        """Return the contents to look up, without the last token, which is always computed.

        Content that only this request has is included after a preemption, since it is not cached before.
        """
        most = (seq.target - 1) // self._pool.block_size
        return self._pool.keys(seq, 0, most) if seq.preemptions else seq.shared[:most]

    # --- the choice

    def _is_loaded(self, seq: SequenceState, hits: int, found: int) -> bool:
        if seq.index in self._loaded_for or self._policy == "recompute":
            return False
        if self._policy == "cheaper":
            return self._link.load_ns(found) < self.recompute_ns(hits, found, seq.target)
        return True

    def recompute_ns(self, hits: int, found: int, target: int) -> int:
        """Return the device time, in ns, to compute the `found` blocks after the first `hits` again.

        It is a part of a prefill of `target` tokens without other sequences in its steps.
        """
        size = self._pool.block_size
        return self._prefill_ns(hits * size, target) - self._prefill_ns((hits + found) * size, target)

    def _prefill_ns(self, context: int, target: int) -> int:
        """Return the device time, in ns, of the steps, with full token budgets, from `context` to `target` tokens."""
        total = 0
        while context < target:
            tokens = min(self._budget, target - context)
            total += self._core.cost.step_cost(BatchShape(chunks=((tokens, context),))).device_ns
            context += tokens
        return total

    def _decline(self, seq: SequenceState, found: int) -> None:
        if found:
            self._declined[seq.index] = found
        else:
            self._declined.pop(seq.index, None)

    # --- loading

    def _load(self, seq: ContentSequence, hits: int, found: list[int]) -> None:
        pool, end = self._pool, (hits + len(found)) * self._pool.block_size
        pool.tier.touch(reversed(found))
        self._declined.pop(seq.index, None)
        self._loaded_for.add(seq.index)
        self._batch.park(seq, end)
        arriving = [key for key in found if key not in self._followers]
        self._followers |= {key: [] for key in arriving}
        self._reserved += self._lacking(seq)
        row = self._open(seq, len(found))
        self._log.bytes[row] = self._link.load(len(found), partial(self._loaded, seq, arriving, end, row))

    def _loaded(self, seq: SequenceState, arrived: list[int], end: int, row: int) -> None:
        self._log.loaded_ns[row] = self._link.now_ns
        if seq.index in self._withdrawn:
            self._withdrawn.remove(seq.index)
            self._batch.free(seq)
        else:
            self._reserved -= self._lacking(seq)
            self._batch.unpark(seq, end)
        for key in arrived:
            for follower in self._followers.pop(key):
                self._batch.unpark(follower, 0)
        self._core.wake()

    def _lacking(self, seq: SequenceState) -> int:
        """Return the number of blocks that a parked sequence lacks for its known tokens."""
        return self._pool.lacking(seq, seq.target)

    def _open(self, seq: SequenceState, blocks: int) -> int:
        """Add a row to the log for blocks that were found; return its number."""
        tokens = blocks * self._pool.block_size
        return self._log.open(seq.index, self._core.number, tokens, self._link.now_ns)
