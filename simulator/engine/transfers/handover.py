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
from simulator.engine.fleet import Fleet, Group
from simulator.engine.logs.request_log import Moment, RequestLog, TransferLog
from simulator.engine.replica import Replica
from simulator.engine.transfers.kv_transfer import Inbox, Journey, KvLayout, Outbox
from simulator.engine.transfers.layerwise import Groups, LayerwiseTransfer
from simulator.engine.transfers.links import Network
from simulator.errors import StalledError
from simulator.routing import Decider
from simulator.scenario.handover import Always, Handover
from simulator.scheduling import Limits, Sequence


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
        self._journeys: dict[int, Journey] = {}
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
        journey = Journey(source, outgoing, target, incoming, self._layout(*places), self._log.open(index, *places))
        journey.failures = self._failures(index)
        self._journeys[index] = journey
        self._inboxes[target.number].known_tokens += incoming.target
        self._requests.replica[index] = target.number
        if self._settings.mode == "push":
            source.promised_tokens += outgoing.prompt_tokens
            self._inboxes[journey.target.number].want(journey)
        else:
            source.submit(outgoing)

    def prefilled(self, source: Replica, sequences: Iterable[Sequence]) -> None:
        """The ear of the prefill replicas: these prompts are computed."""
        now = self._clock._now
        for seq in sequences:
            self._prefill.count_out(source)
            journey = self._journeys[seq.index]
            journey.computed = True
            journey.row[Moment.PREFILL_END] = now
            if self._outputs[seq.index] == 1 and self._settings.first_token == "prefill":
                self._end_early(journey)
            elif seq.index not in source.batch.outside:
                self._lose(journey)
            if self._layerwise:
                self._complete(journey)
            elif journey.over:
                self._discard(journey)
            elif self._settings.mode == "pull":
                self._inboxes[journey.target.number].want(journey)
            else:
                self._dispatch(journey)

    def _lose(self, journey: Journey) -> None:
        """The prompt was preempted while its last step was under way: its KV is gone, and no transfer can succeed."""
        journey.failures = self._settings.max_retries + 1

    def _end_early(self, journey: Journey) -> None:
        """There was but one token to come, and the client has it. What is on its way nobody needs."""
        journey.over = True
        self._decode.count_out(journey.target)
        self._fleet.complete((journey.incoming,))

    def _discard(self, journey: Journey) -> None:
        """Give the blocks of both sides back."""
        self._end(journey)
        for replica, seq in ((journey.source, journey.outgoing), (journey.target, journey.incoming)):
            if seq.index in replica.batch.outside:
                replica.let_go(seq)

    def reserved(self, journey: Journey) -> None:
        """The decode side has the blocks."""
        journey.row[Moment.RESERVED] = self._clock._now
        if self._counts_hits:
            seq = journey.incoming
            self._requests.looked_up(seq.index, seq.computed, seq.cached)
        if self._settings.mode == "push":
            journey.source.promised_tokens -= journey.outgoing.prompt_tokens
            journey.source.submit(journey.outgoing)
        else:
            self._dispatch(journey)

    def _computes(self, chunks: Iterable[tuple[Sequence, int]], start_ns: int, end_ns: int) -> None:
        """A step from `start_ns` to `end_ns` computes these chunks: their layers leave one by one."""
        for seq, _ in chunks:
            journey = self._journeys[seq.index]
            first, upto = journey.sent < 0, min(seq.computed, journey.incoming.computed)
            tokens = upto - (journey.incoming.cached if first else journey.sent)
            journey.sent = max(journey.sent, upto)  # what is computed again after a preemption has been sent
            if tokens > 0:
                journey.spans.append((tokens, start_ns, end_ns))
            if first:
                self._dispatch(journey)
            elif journey.open:
                self._send_spans(journey)

    def _dispatch(self, journey: Journey) -> None:
        """The transfer may begin, if the prefill side has not too many under way."""
        self._outboxes[journey.source.number].start(partial(self._begin, journey))

    def _begin(self, journey: Journey, _: Event | None = None) -> None:
        setup_ns = self._settings.setup
        if not journey.tries:
            journey.row[Moment.START] = self._clock._now
        journey.tries += 1
        if setup_ns:
            self._clock.at(self._clock._now + setup_ns, partial(self._set_up, journey))
        else:
            self._set_up(journey)

    def _set_up(self, journey: Journey, _: Event | None = None) -> None:
        if self._layerwise and journey.tries == 1:
            journey.parts -= 1
            journey.open = True
            self._send_spans(journey)
            self._complete(journey)
        else:
            self._send(journey, journey.tokens)

    def _send(self, journey: Journey, tokens: int) -> None:
        """Send the KV of so many tokens as a whole."""
        if not tokens:
            self._arrived(journey)
            return
        size_bytes, descriptors = self._size(journey, tokens)
        self._network.send(self._way(journey), size_bytes, descriptors, partial(self._arrived, journey))

    def _send_spans(self, journey: Journey) -> None:
        """Send the KV of the chunks that are being computed, layer by layer."""
        for tokens, start_ns, end_ns in journey.spans:
            size_bytes, descriptors = self._size(journey, tokens)
            journey.parts += 1
            done = partial(self._part_done, journey)
            groups, way = Groups(journey.layout.layers, *self._groups), self._way(journey)
            LayerwiseTransfer(self._network, way, size_bytes, groups, descriptors, start_ns, end_ns, done)
        journey.spans.clear()

    def _part_done(self, journey: Journey) -> None:
        journey.parts -= 1
        self._complete(journey)

    def _complete(self, journey: Journey) -> None:
        """Layer by layer, a transfer is over when the prompt is computed and no part is under way."""
        if journey.computed and not journey.parts:
            self._arrived(journey)

    def _way(self, journey: Journey) -> tuple[int, ...]:
        return self._route(journey.source.number, journey.target.number)

    def _size(self, journey: Journey, tokens: int) -> tuple[int, int]:
        """Bytes and descriptors of so many tokens, which are noted as sent."""
        size_bytes = journey.layout.size_bytes(tokens)
        journey.row[Moment.BYTES] += size_bytes
        return size_bytes, journey.layout.descriptors(tokens)

    def _arrived(self, journey: Journey) -> None:
        """The last byte is there, or was lost."""
        if journey.over:
            self._outboxes[journey.source.number].done()
            self._discard(journey)
            return
        if not journey.failures:
            journey.row[Moment.ARRIVED] = self._clock._now
            self._leave(journey)
            self._inboxes[journey.target.number].receive(journey)
            return
        journey.failures -= 1
        journey.row[Moment.FAILURES] += 1
        if journey.tries <= self._settings.max_retries:
            self._begin(journey)
        else:
            self._recompute(journey)

    def _leave(self, journey: Journey) -> None:
        """The prefill side is done with the request."""
        if journey.outgoing.index in journey.source.batch.outside:
            journey.source.let_go(journey.outgoing)
        self._outboxes[journey.source.number].done()

    def _recompute(self, journey: Journey) -> None:
        """The decode side computes the prompt itself."""
        journey.row[Moment.RECOMPUTED] = 1
        self._end(journey)
        self._leave(journey)
        journey.target.let_go(journey.incoming)
        journey.incoming.start_over(int(self._settings.first_token == "prefill"))
        journey.target.readmit(journey.incoming)

    def joins(self, journey: Journey) -> bool:
        """The decode side takes the request over; False if its only token is delivered by that."""
        seq, target = journey.incoming, journey.target
        journey.row[Moment.JOINED] = self._clock._now
        self._end(journey)
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

    def _complete_at(self, target: Replica, seq: Sequence, _: Event) -> None:
        self._decode.count_out(target)
        self._fleet.complete((seq,))

    def _end(self, journey: Journey) -> None:
        """The request is no longer on its way."""
        del self._journeys[journey.incoming.index]
        self._inboxes[journey.target.number].known_tokens -= journey.incoming.target

    def check_progress(self) -> None:
        """Raise StalledError if a request is on its way; to be asked when nothing will ever happen again."""
        if self._journeys:
            index, journey = next(iter(self._journeys.items()))
            raise StalledError(
                f"{len(self._journeys)} requests are on their way from prefill to decode and never arrive (the first: "
                f"request {index}, from replica {journey.source.number} to {journey.target.number})"
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
