"""Disaggregated serving: a prompt is computed by one replica, its KV travels, and another replica decodes.

Both replicas are chosen on arrival. Where the decode side's blocks are reserved first (`push`), the prefill begins when
they are; else (`pull`) they are reserved when the prompt is computed. A reservation is made when the decode side forms
a step, as vLLM's scheduler does: only while a running slot is free, and behind whatever waits there without blocks.
Until the KV has arrived the prefill side keeps its blocks, so that a full decode side stalls the prefill side, too. The
sequence joins the decode side's batch at the next step that is formed there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.fleet import Fleet, Group
from simulator.engine.layerwise import LayerwiseTransfer
from simulator.engine.links import Network
from simulator.engine.log import Moment, RequestLog, TransferLog
from simulator.engine.replica import Replica
from simulator.errors import StalledError
from simulator.routing import Decider
from simulator.scenario.handover import Always, Handover
from simulator.scheduling import Limits, Sequence


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What a transfer of KV consists of: bytes a token of all layers, and pieces of memory a block of them."""

    token_bytes: int
    layers: int
    block_size: int
    descriptors_per_block: int

    def size_bytes(self, tokens: int) -> int:
        """Bytes of so many tokens."""
        return tokens * self.token_bytes

    def descriptors(self, tokens: int) -> int:
        """Pieces of memory that so many tokens lie in."""
        return -(-tokens // self.block_size) * self.descriptors_per_block


class Journey:
    """One request on its way from `source`, as `outgoing`, to `target`, as `incoming`."""

    __slots__ = (
        "computed",
        "failures",
        "incoming",
        "layout",
        "open",
        "outgoing",
        "over",
        "parts",
        "row",
        "sent",
        "source",
        "spans",
        "target",
        "tries",
    )

    def __init__(
        self,
        source: Replica,
        outgoing: Sequence,
        target: Replica,
        incoming: Sequence,
        layout: KvLayout,
        row: list[int],
    ) -> None:
        self.source = source
        self.outgoing = outgoing
        self.target = target
        self.incoming = incoming
        self.layout = layout
        self.row = row  # in the log
        self.failures = 0  # of its transfer that are still to come
        self.tries = 0
        self.computed = False  # is the prompt?
        self.open = False  # may parts be sent as they are computed?
        self.over = False  # has the request ended with its first token?
        # Layer by layer, each chunk's KV is a part of its own; first it waits here: tokens, start and end of its step.
        self.spans: list[tuple[int, int, int]] = []
        self.parts = 1  # that are under way; the set-up is one
        self.sent = -1  # tokens in the parts so far, counted from the first one of the prompt

    @property
    def tokens(self) -> int:
        """Tokens whose KV travels: all that are computed, but those that the target has in its prefix cache."""
        return self.incoming.computed - self.incoming.cached


class Inbox:
    """What a decode replica is to take over. The replica looks here whenever it forms a step.

    `wanted` journeys lack their blocks, first come, first served; what is `ready` has its KV here; `pending` counts
    both. `known_tokens` are those of all requests that are on their way here.
    """

    def __init__(self, replica: Replica, limits: Limits, handovers: Handovers) -> None:
        self.wanted: deque[Journey] = deque()
        self.ready: deque[Journey] = deque()
        self.known_tokens = 0
        self.pending = 0
        self._replica = replica
        self._max_num_seqs, self._to_completion = limits.max_num_seqs, limits.sets_aside
        self._handovers = handovers

    def serve(self) -> None:
        """Let what is ready join the batch, and reserve blocks for what comes next; its KV is here at once if nothing
        has to be sent."""
        batch = self._replica.batch
        self._take_over()
        while self.wanted and not batch.waiting and batch.running < self._max_num_seqs:
            journey = self.wanted[0]
            if not batch.reserve(journey.incoming, journey.incoming.target - 1, self._to_completion):
                break
            self.wanted.popleft()
            self.pending -= 1
            self._handovers.reserved(journey)
        self._take_over()

    def _take_over(self) -> None:
        batch = self._replica.batch
        while self.ready and batch.running < self._max_num_seqs:
            journey = self.ready.popleft()
            self.pending -= 1
            if self._handovers.joins(journey):
                batch.join(journey.incoming)

    def want(self, journey: Journey) -> None:
        """A request needs blocks here."""
        self.wanted.append(journey)
        self.pending += 1
        self._replica.wake()

    def receive(self, journey: Journey) -> None:
        """The KV of a request is here."""
        self.ready.append(journey)
        self.pending += 1
        self._replica.wake()


class Outbox:
    """The transfers of a prefill replica: at most `most` at once, the others in turn."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way = 0
        self._queue: deque[Callable[[], object]] = deque()

    def start(self, begin: Callable[[], object]) -> None:
        """Begin a transfer as soon as may be."""
        if self._most is not None and self._under_way >= self._most:
            self._queue.append(begin)
            return
        self._under_way += 1
        begin()

    def done(self) -> None:
        """A transfer has ended."""
        if self._queue:
            self._queue.popleft()()
        else:
            self._under_way -= 1


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
        self._delivered = int(settings.first_token != "decode")  # tokens that the decode side need not compute
        self._journeys: dict[int, Journey] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: dict[int, Outbox] = {}

    def connect(self, limits: dict[int, Limits]) -> None:
        """Give the prefill and decode replicas their boxes; `limits[i]` are those of replica i."""
        for replica in self._decode.replicas:
            inbox = self._inboxes[replica.number] = Inbox(replica, limits[replica.number], self)
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
            way, layers = self._way(journey), journey.layout.layers
            LayerwiseTransfer(self._network, way, size_bytes, layers, descriptors, start_ns, end_ns, done)
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
