"""Disaggregated serving: a prompt is computed by one replica, its KV travels, and another replica decodes.

Both replicas are chosen on arrival. Where the decode side's blocks are reserved first (`push`), the prefill begins when
they are; else (`pull`) they are reserved when the prompt is computed. A reservation is made when the decode side forms
a step, as vLLM's scheduler does: only while a running slot is free, and behind whatever waits there without blocks.
Until the KV has arrived the prefill side keeps its blocks, so that a full decode side stalls the prefill side, too. The
sequence joins the decode side's batch at the next step that is formed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.lifecycle import Fleet, Group
from simulator.engine.logs.request_log import Moment, RequestLog, TransferLog
from simulator.engine.transfers.kv_transfer import Inbox, KvLayout, KvTransfer, Outbox
from simulator.engine.transfers.layerwise import Groups, LayerwiseTransfer
from simulator.engine.transfers.links import Network
from simulator.errors import StalledError
from simulator.routing import Decider
from simulator.scenario.handover import Always, Handover
from simulator.scheduling import Limits, SequenceState


class Handovers:
    """Starts requests in a service with prefill pools, and sees each through to the decode side.

    `failures(i)` says how often the transfer of request i fails, one after the other. `counts_hits`: the decode side
    alone has a prefix cache, so that the lookup of a request is that of its reservation.
    """

    def __init__(
        self,
        clock: Clock,
        settings: Handover,
        fleet: Fleet,
        requests: RequestLog,
        log: TransferLog,
        groups: tuple[Group, Group, Group],
        decider: Decider,
        network: Network,
        route: Callable[[int, int], tuple[int, ...]],
        layout: Callable[[int, int], KvLayout],
        failures: Callable[[int], int],
        outputs: memoryview,
        counts_hits: bool,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._fleet = fleet
        self._requests = requests
        self._log = log
        self._prefill, self._decode, self._local = groups
        self._decider = None if isinstance(settings.decider, Always) else decider
        self._network = network
        self._route = route
        self._layout = layout
        self._failures = failures
        self._outputs = outputs
        self._counts_hits = counts_hits
        self._layerwise = settings.overlap == "layerwise"
        self._groups = settings.layers_per_group or 1, settings.group_setup or 0
        self._delivered = int(settings.first_token != "decode")  # tokens that the decode side need not compute
        self._transfers: dict[int, KvTransfer] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: dict[int, Outbox] = {}

    def connect(self, limits: dict[int, Limits], tokens: dict[int, int]) -> None:
        """Give the prefill and decode replicas their boxes; `limits[i]` are those of replica i, whose decodes count for
        `tokens[i]` tokens of a step."""
        for replica in self._decode.replicas:
            number = replica.number
            inbox = self._inboxes[number] = Inbox(replica, limits[number], tokens[number], self)
            replica.inbox = inbox
        for replica in self._prefill.replicas:
            self._outboxes[replica.number] = Outbox(self._settings.max_concurrent)
            replica.batch.keeps = True
            if self._layerwise:
                replica.computes = self._computes

    # --- the way of a request

    def place(self, index: int) -> None:
        """Start request `index`, here or there."""
        if self._decider is not None and not self._decider(_Prospect(index, self._local, self._prefill)):
            self._fleet.serve(*self._local.place(index))
            return
        target, incoming = self._decode.place(index)
        source, outgoing = self._prefill.place(index)
        outgoing.max_tokens = 1
        incoming.expect(self._delivered)
        places = source.number, target.number
        transfer = KvTransfer(source, outgoing, target, incoming, self._layout(*places), self._log.open(index, *places))
        transfer.failures = self._failures(index)
        self._transfers[index] = transfer
        self._inboxes[target.number].known_tokens += incoming.target
        self._requests.replica[index] = target.number
        if self._settings.mode == "push":
            source.promised_tokens += outgoing.prompt_tokens
            self._inboxes[transfer.target.number].want(transfer)
        else:
            source.submit(outgoing)

    def prefilled(self, source: EngineCore, sequences: Iterable[SequenceState]) -> None:
        """The ear of the prefill replicas: these prompts are computed."""
        now = self._clock._now
        for seq in sequences:
            self._prefill.count_out(source)
            transfer = self._transfers[seq.index]
            transfer.computed = True
            transfer.row[Moment.PREFILL_END] = now
            if self._outputs[seq.index] == 1 and self._settings.first_token == "prefill":
                self._end_early(transfer)
            elif seq.index not in source.batch.outside:
                self._lose(transfer)
            if self._layerwise:
                self._complete(transfer)
            elif transfer.over:
                self._discard(transfer)
            elif self._settings.mode == "pull":
                self._inboxes[transfer.target.number].want(transfer)
            else:
                self._dispatch(transfer)

    def _lose(self, transfer: KvTransfer) -> None:
        """The prompt was preempted while its last step was under way: its KV is gone, and no transfer can succeed."""
        transfer.failures = self._settings.max_retries + 1

    def _end_early(self, transfer: KvTransfer) -> None:
        """There was but one token to come, and the client has it. What is on its way nobody needs."""
        transfer.over = True
        self._decode.count_out(transfer.target)
        self._fleet.complete((transfer.incoming,))

    def _discard(self, transfer: KvTransfer) -> None:
        """Give the blocks of both sides back."""
        self._end(transfer)
        for replica, seq in ((transfer.source, transfer.outgoing), (transfer.target, transfer.incoming)):
            if seq.index in replica.batch.outside:
                replica.let_go(seq)

    def reserved(self, transfer: KvTransfer) -> None:
        """The decode side has the blocks."""
        transfer.row[Moment.RESERVED] = self._clock._now
        if self._counts_hits:
            seq = transfer.incoming
            self._requests.looked_up(seq.index, seq.computed, seq.cached)
        if self._settings.mode == "push":
            transfer.source.promised_tokens -= transfer.outgoing.prompt_tokens
            transfer.source.submit(transfer.outgoing)
        else:
            self._dispatch(transfer)

    def _computes(self, chunks: Iterable[tuple[SequenceState, int]], start_ns: int, end_ns: int) -> None:
        """A step from `start_ns` to `end_ns` computes these chunks: their layers leave one by one."""
        for seq, _ in chunks:
            transfer = self._transfers[seq.index]
            first, upto = transfer.sent < 0, min(seq.computed, transfer.incoming.computed)
            tokens = upto - (transfer.incoming.cached if first else transfer.sent)
            transfer.sent = max(transfer.sent, upto)  # what is computed again after a preemption has been sent
            if tokens > 0:
                transfer.spans.append((tokens, start_ns, end_ns))
            if first:
                self._dispatch(transfer)
            elif transfer.open:
                self._send_spans(transfer)

    def _dispatch(self, transfer: KvTransfer) -> None:
        """The transfer may begin, if the prefill side has not too many under way."""
        self._outboxes[transfer.source.number].start(partial(self._begin, transfer))

    def _begin(self, transfer: KvTransfer, _: Event | None = None) -> None:
        setup_ns = self._settings.setup
        if not transfer.tries:
            transfer.row[Moment.START] = self._clock._now
        transfer.tries += 1
        if setup_ns:
            self._clock.at(self._clock._now + setup_ns, partial(self._set_up, transfer))
        else:
            self._set_up(transfer)

    def _set_up(self, transfer: KvTransfer, _: Event | None = None) -> None:
        if self._layerwise and transfer.tries == 1:
            transfer.parts -= 1
            transfer.open = True
            self._send_spans(transfer)
            self._complete(transfer)
        else:
            self._send(transfer, transfer.tokens)

    def _send(self, transfer: KvTransfer, tokens: int) -> None:
        """Send the KV of so many tokens as a whole."""
        if not tokens:
            self._arrived(transfer)
            return
        size_bytes, descriptors = self._size(transfer, tokens)
        self._network.send(self._way(transfer), size_bytes, descriptors, partial(self._arrived, transfer))

    def _send_spans(self, transfer: KvTransfer) -> None:
        """Send the KV of the chunks that are being computed, layer by layer."""
        for tokens, start_ns, end_ns in transfer.spans:
            size_bytes, descriptors = self._size(transfer, tokens)
            transfer.parts += 1
            done = partial(self._part_done, transfer)
            groups, way = Groups(transfer.layout.layers, *self._groups), self._way(transfer)
            LayerwiseTransfer(self._network, way, size_bytes, groups, descriptors, start_ns, end_ns, done)
        transfer.spans.clear()

    def _part_done(self, transfer: KvTransfer) -> None:
        transfer.parts -= 1
        self._complete(transfer)

    def _complete(self, transfer: KvTransfer) -> None:
        """Layer by layer, a transfer is over when the prompt is computed and no part is under way."""
        if transfer.computed and not transfer.parts:
            self._arrived(transfer)

    def _way(self, transfer: KvTransfer) -> tuple[int, ...]:
        return self._route(transfer.source.number, transfer.target.number)

    def _size(self, transfer: KvTransfer, tokens: int) -> tuple[int, int]:
        """Bytes and descriptors of so many tokens, which are noted as sent."""
        size_bytes = transfer.layout.size_bytes(tokens)
        transfer.row[Moment.BYTES] += size_bytes
        return size_bytes, transfer.layout.descriptors(tokens)

    def _arrived(self, transfer: KvTransfer) -> None:
        """The last byte is there, or was lost."""
        if transfer.over:
            self._outboxes[transfer.source.number].done()
            self._discard(transfer)
            return
        if not transfer.failures:
            transfer.row[Moment.ARRIVED] = self._clock._now
            self._leave(transfer)
            self._inboxes[transfer.target.number].receive(transfer)
            return
        transfer.failures -= 1
        transfer.row[Moment.FAILURES] += 1
        if transfer.tries <= self._settings.max_retries:
            self._begin(transfer)
        else:
            self._recompute(transfer)

    def _leave(self, transfer: KvTransfer) -> None:
        """The prefill side is done with the request."""
        if transfer.outgoing.index in transfer.source.batch.outside:
            transfer.source.let_go(transfer.outgoing)
        self._outboxes[transfer.source.number].done()

    def _recompute(self, transfer: KvTransfer) -> None:
        """The decode side computes the prompt itself."""
        transfer.row[Moment.RECOMPUTED] = 1
        self._end(transfer)
        self._leave(transfer)
        transfer.target.let_go(transfer.incoming)
        transfer.incoming.start_over(int(self._settings.first_token == "prefill"))
        transfer.target.readmit(transfer.incoming)

    def joins(self, transfer: KvTransfer) -> bool:
        """The decode side takes the request over; False if its only token is delivered by that."""
        seq, target = transfer.incoming, transfer.target
        transfer.row[Moment.JOINED] = self._clock._now
        self._end(transfer)
        if self._settings.first_token == "transfer":
            at_ns = target.deliver(seq)
            if self._outputs[seq.index] == 1:
                target.batch.let_go(seq)
                self._clock.at(at_ns, partial(self._complete_at, target, seq))
                return False
        if not seq.computed:  # its prompt is one token, so that nothing was to come
            target.let_go(seq)
            target.readmit(seq)
            return False
        return True

    def _complete_at(self, target: EngineCore, seq: SequenceState, _: Event) -> None:
        self._decode.count_out(target)
        self._fleet.complete((seq,))

    def _end(self, transfer: KvTransfer) -> None:
        """The request is no longer on its way."""
        del self._transfers[transfer.incoming.index]
        self._inboxes[transfer.target.number].known_tokens -= transfer.incoming.target

    def check_progress(self) -> None:
        """Raise StalledError if a request is on its way; to be asked when nothing will ever happen again."""
        if self._transfers:
            index, transfer = next(iter(self._transfers.items()))
            raise StalledError(
                f"{len(self._transfers)} requests are on their way from prefill to decode and never arrive (the first: "
                f"request {index}, from replica {transfer.source.number} to {transfer.target.number})"
            )


class _Prospect:
    """See `routing.Prospect`."""

    def __init__(self, index: int, local: Group, prefill: Group) -> None:
        self._index = index
        self._local = local
        self._prefill = prefill
        self.prompt_tokens = local.prompt_tokens(index)

    def cached_tokens(self) -> int:
        return self._local.cached_tokens(self._index)

    def prefill_tokens(self) -> int:
        return min(replica.known_tokens for replica in self._prefill.replicas)
