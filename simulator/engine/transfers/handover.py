"""Disaggregated prefill: one engine core computes a prompt, its KV is transferred, and another core decodes.

Both cores are chosen on arrival. With `push`, blocks of the decode core are reserved before the prefill starts; with
`pull`, after the prompt is computed. Blocks are reserved before the decode core forms a step, as in vLLM's scheduler:
only while fewer sequences run than its limit, and after waiting requests without blocks. The prefill core keeps its
blocks until the KV has arrived, so that a full decode core delays the prefill core, too. The sequence joins the batch
of the decode core at the next step that is formed there.

A request withdrawn during its transfer ends at once; the transfer goes on, as in vLLM, and both cores free blocks then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from simpy.events import Event

from simulator.engine.core import EngineCore
from simulator.engine.lifecycle import Lifecycle
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.logs.transfer_log import Moment, TransferLog
from simulator.engine.routing_group import RoutingGroup, WholeRequests
from simulator.engine.transfers.connectors import Inbox, Outbox, TransferQueue
from simulator.engine.transfers.kv_transfer import CorePair, KvTransfer
from simulator.engine.transfers.prospect import RequestProspect
from simulator.engine.transfers.sender import KvSender, TransferPaths
from simulator.errors import StalledError
from simulator.routing import Decider
from simulator.scenario.handover import Always, Handover
from simulator.scheduling import Limits, Plan, SequenceState


@dataclass(frozen=True, slots=True)
class HandoverGroups:
    """The routing groups of a service with prefill pools, and the decider between one core and two.

    `local` serves requests that are not transferred: cores of role `both` if there are any, else decode cores.
    """

    prefill: RoutingGroup
    decode: WholeRequests
    local: WholeRequests
    decider: Decider


@dataclass(frozen=True, slots=True)
class HandoverLogs:
    """The logs of requests and transfers, and the output lengths by request, which policies do not get.

    `counts_hits`: only decode cores have a prefix cache, so that a request's lookup is that of its reservation.
    """

    requests: RequestLog
    transfers: TransferLog
    outputs: memoryview
    counts_hits: bool


class Handovers:
    """Requests of a service with prefill pools, from their start to the decode core.

    It is the listener of the prefill cores, and the holder of the requests until they join the batch of a decode core.
    """

    def __init__(
        self, lifecycle: Lifecycle, settings: Handover, groups: HandoverGroups, paths: TransferPaths, logs: HandoverLogs
    ) -> None:
        self._clock, self._lifecycle, self._settings = paths.network.clock, lifecycle, settings
        self._groups, self._paths, self._logs = groups, paths, logs
        self._decider = None if isinstance(settings.decider, Always) else groups.decider
        self._sender = KvSender(settings, paths.network, self._arrived)
        self._pushes, self.load_fell = settings.mode == "push", groups.prefill.load_fell
        self._delivered = int(settings.first_token != "decode")  # output tokens that the decode core need not compute
        self._transfers: dict[int, KvTransfer] = {}
        self._pairs: dict[tuple[EngineCore, EngineCore], CorePair] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: dict[int, Outbox] = {}

    def connect_decode(self, core: EngineCore, limits: Limits, tokens: int) -> None:
        """Add the connector of a decode core; `limits` are its scheduler's, and a decode has `tokens` tokens a step."""
        core.connect(self._inboxes.setdefault(core.number, Inbox(core, limits, tokens, self)))

    def connect_prefill(self, core: EngineCore) -> None:
        """Add the connector of a prefill core."""
        queue = TransferQueue(self._settings.max_concurrent, self._sender.begin)
        outbox = self._outboxes[core.number] = Outbox(queue, self if self._sender.layerwise else None)
        core.connect(outbox)

    # --- from arrival to the prefill

    def place(self, index: int) -> bool:
        """Start request `index`, for one core or two; False if no core is open."""
        groups = self._groups
        if self._decider is not None and self._is_local(index, self._decider):
            return groups.local.place(index)
        decode = groups.decode.group.place(index)
        if decode is None:
            return False
        prefill = groups.prefill.place(index)
        if prefill is None:
            groups.decode.group.count_out(decode[0].core)
            return False
        source, outgoing = prefill[0].core, prefill[1]
        target, incoming = decode[0].core, decode[1]
        outgoing.max_tokens = 1
        incoming.expect(self._delivered)
        pair = self._pairs.get((source, target)) or self._add_pair(source, target)
        row = self._logs.transfers.open(index, *pair.numbers)
        transfer = KvTransfer(pair, index, outgoing, incoming, row)
        if self._paths.failures is not None:
            transfer.failures = self._paths.failures(index)
        self._transfers[index] = transfer
        self._lifecycle.hold(index, self, transfer)
        pair.inbox.known_tokens += incoming.target
        self._logs.requests.replica[index] = pair.numbers[1]
        if self._pushes:
            pair.outbox.known_tokens += outgoing.prompt_tokens
            pair.inbox.want(transfer)
        else:
            source.submit(outgoing)
        return True

    def _add_pair(self, source: EngineCore, target: EngineCore) -> CorePair:
        numbers = source.number, target.number
        ends = source, self._outboxes[source.number], target, self._inboxes[target.number]
        pair = CorePair(numbers, *ends, self._paths.route(*numbers), self._paths.layout(*numbers))
        return self._pairs.setdefault((source, target), pair)

    def _is_local(self, index: int, decider: Decider) -> bool:
        """Return whether one core serves request `index` from start to end."""
        local, prefill = self._groups.local.group, self._groups.prefill
        if not local.loads or not prefill.loads:
            return False
        return not decider(RequestProspect(index, local, prefill))

    def reserved(self, transfer: KvTransfer) -> None:
        """Continue after the decode core has its blocks, with the prefill (`push`) or the transfer (`pull`)."""
        transfer.row[Moment.RESERVED] = self._clock._now
        if self._logs.counts_hits:
            self._logs.requests.looked_up(transfer.index, transfer.incoming.computed, transfer.incoming.cached)
        if self._pushes:
            transfer.pair.outbox.known_tokens -= transfer.outgoing.prompt_tokens
            transfer.pair.source.submit(transfer.outgoing)
        else:
            transfer.pair.outbox.queue.start(transfer)

    def finished(self, core: EngineCore, sequences: Sequence[SequenceState]) -> None:
        """Continue with these requests, whose prompts are computed."""
        self._groups.prefill.count_out(core, len(sequences))
        for seq in sequences:
            transfer = self._transfers[seq.index]
            transfer.computed = True
            transfer.row[Moment.PREFILL_END] = self._clock._now
            if self._logs.outputs[seq.index] == 1 and self._settings.first_token == "prefill":
                self._end_early(transfer)
            elif transfer.withdrawn:
                self._end_withdrawn(transfer)
            elif seq.index not in core.batch.outside:
                # It was preempted while its last step was in flight: its KV is lost, so that all transfers fail.
                transfer.failures = self._settings.max_retries + 1
            if self._sender.layerwise:
                self._sender.finish(transfer)
            elif transfer.over:
                self._discard(transfer)
            elif not self._pushes:
                transfer.pair.inbox.want(transfer)
            else:
                transfer.pair.outbox.queue.start(transfer)

    # --- the transfer

    def computes(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Send the layers of a plan's chunks one by one, as the step computes them."""
        for seq, _ in plan.chunks if plan.work is None else plan.work:
            transfer = self._transfers[seq.index]
            if self._sender.add_chunk(transfer, seq.computed, (start_ns, end_ns)):
                transfer.pair.outbox.queue.start(transfer)

    def _arrived(self, transfer: KvTransfer) -> None:
        """Continue after the last byte has arrived, or the transfer has failed."""
        if transfer.over:
            transfer.pair.outbox.queue.done()
            self._discard(transfer)
            return
        if not transfer.failures:
            transfer.row[Moment.ARRIVED] = self._clock._now
            self._leave_prefill(transfer)
            transfer.pair.inbox.receive(transfer)
            return
        transfer.failures -= 1
        transfer.row[Moment.FAILURES] += 1
        if transfer.tries <= self._settings.max_retries:
            self._sender.begin(transfer)
        else:
            self._recompute(transfer)

    def _leave_prefill(self, transfer: KvTransfer) -> None:
        """Free the blocks of the prefill core, and start its next transfer."""
        if transfer.index in transfer.pair.source.batch.outside:
            transfer.pair.source.free(transfer.outgoing)
        transfer.pair.outbox.queue.done()

    # --- the decode side

    def _recompute(self, transfer: KvTransfer) -> None:
        """Let the decode core compute the prompt itself."""
        transfer.row[Moment.RECOMPUTED] = 1
        self._end(transfer)
        self._leave_prefill(transfer)
        transfer.pair.target.free(transfer.incoming)
        transfer.incoming.start_over(int(self._settings.first_token == "prefill"))
        self._lifecycle.hold(transfer.index, transfer.pair.target, transfer.incoming)
        transfer.pair.target.resubmit(transfer.incoming)

    def joins(self, transfer: KvTransfer) -> bool:
        """Hand the request to the decode core; False if it does not join the batch."""
        seq, target = transfer.incoming, transfer.pair.target
        transfer.row[Moment.JOINED] = self._clock._now
        self._end(transfer)
        if self._settings.first_token == "transfer":
            at_ns = target.deliver(seq)
            if self._logs.outputs[seq.index] == 1:
                target.batch.free(seq)
                self._clock.at(at_ns, partial(self._complete_at, target, seq))
                return False
        self._lifecycle.hold(transfer.index, target, seq)
        if not seq.computed:  # its prompt has one token, so that no KV is transferred
            target.free(seq)
            target.resubmit(seq)
            return False
        return True

    def _complete_at(self, target: EngineCore, seq: SequenceState, _: Event) -> None:
        self._groups.decode.finished(target, (seq,))

    def _end_early(self, transfer: KvTransfer) -> None:
        """Complete a request of one token, which is delivered. Its transfer is discarded."""
        transfer.over = True
        self._groups.decode.finished(transfer.pair.target, (transfer.incoming,))

    def _end(self, transfer: KvTransfer) -> None:
        """Remove a transfer that is over."""
        del self._transfers[transfer.index]
        transfer.pair.inbox.known_tokens -= transfer.incoming.target
        self._groups.decode.load_fell(transfer.pair.target)

    def _discard(self, transfer: KvTransfer) -> None:
        """Free the blocks of both cores."""
        self._end(transfer)
        for core, seq in ((transfer.pair.source, transfer.outgoing), (transfer.pair.target, transfer.incoming)):
            if seq.index in core.batch.outside:
                core.free(seq)

    # --- withdrawals

    def withdraw(self, transfer: KvTransfer) -> None:
        """Withdraw a request in any state of its transfer."""
        if self._transfers.get(transfer.index) is not transfer:
            return  # its last token is delivered at the next step boundary
        inbox, outbox = transfer.pair.inbox, transfer.pair.outbox
        if inbox.remove(transfer):
            if not transfer.computed:  # with `push`, it waits for blocks before the prefill
                outbox.known_tokens -= transfer.outgoing.prompt_tokens
                self._groups.prefill.count_out(transfer.pair.source)
            self._end_withdrawn(transfer)
            self._discard(transfer)
        elif not transfer.computed:
            transfer.withdrawn = True
            transfer.pair.source.withdraw(transfer.outgoing)
        else:
            self._end_withdrawn(transfer)
            if outbox.queue.remove(transfer):
                self._discard(transfer)

    def withdrawn(self, core: EngineCore, seq: SequenceState) -> None:
        """End a request that its prefill core has withdrawn."""
        transfer = self._transfers[seq.index]
        self._groups.prefill.count_out(core)
        self._end_withdrawn(transfer)
        if transfer.sent < 0 or transfer.pair.outbox.queue.remove(transfer):
            self._discard(transfer)
        else:  # layer by layer, parts are in flight
            transfer.computed = True
            transfer.spans = ()
            self._sender.finish(transfer)

    def _end_withdrawn(self, transfer: KvTransfer) -> None:
        transfer.over = True
        self._groups.decode.withdrawn(transfer.pair.target, transfer.incoming)

    def check_progress(self) -> None:
        """Raise StalledError if a transfer is not over; for the end of a run, when no event is left."""
        if self._transfers:
            index, transfer = next(iter(self._transfers.items()))
            raise StalledError(
                f"{len(self._transfers)} requests are on their way from prefill to decode and never arrive (the first: "
                f"request {index}, from replica {transfer.pair.source.number} to {transfer.pair.target.number})"
            )
