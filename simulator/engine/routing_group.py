"""Groups of engine cores with one router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from simulator.engine.core import EngineCore
from simulator.engine.lifecycle import Lifecycle
from simulator.engine.logs.request_log import RequestLog
from simulator.routing import Least, OpenLoads, Router
from simulator.scheduling import SequenceState

#: Returns a new sequence of request i.
SequenceFactory = Callable[[int], SequenceState]


class CoreLoad:
    """The load of an engine core, for routers; `requests` is the number of unfinished ones."""

    __slots__ = ("core", "is_open", "make", "number", "requests")

    def __init__(self, core: EngineCore, make: SequenceFactory) -> None:
        self.core = core
        self.make = make
        self.number = core.number
        self.is_open = True
        self.requests = 0

    @property
    def waiting(self) -> int:
        """Number of unfinished requests that are not running."""
        return self.core.waiting

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished requests."""
        return self.core.known_tokens


class RoutingGroup:
    """The engine cores of a router; `loads` are those of the cores that are open to requests, by number."""

    def __init__(self, router: Router) -> None:
        self.loads: OpenLoads[CoreLoad] = OpenLoads()
        self._all: dict[EngineCore, CoreLoad] = {}
        self._router = router
        self._fewest = Least(attrgetter("known_tokens"))

    def add(self, core: EngineCore, make: SequenceFactory) -> None:
        """Add an engine core, open to requests; `make` is the factory of its sequences."""
        self._all[core] = load = CoreLoad(core, make)
        self.loads.append(load)

    def set_open(self, cores: Sequence[EngineCore], is_open: bool) -> None:
        """Open these cores to new requests, or close them."""
        for core in cores:
            self._all[core].is_open = is_open
        self.loads = OpenLoads([load for load in self._all.values() if load.is_open])

    def place(self, index: int) -> tuple[CoreLoad, SequenceState] | None:
        """Choose an engine core for request `index` and count it there; return its load and the request's sequence.

        None if no core is open, or the router returns none.
        """
        if not self.loads:
            return None
        make = self.loads[0].make
        seq = make(index)
        load = self._router.choose(seq, self.loads)
        if load is None:
            return None
        load.requests += 1
        return load, seq if load.make is make else load.make(index)

    def count_out(self, core: EngineCore, requests: int = 1) -> None:
        """Subtract requests that have left a core."""
        load = self._all[core]
        load.requests -= requests
        if self.loads.followers:
            self.loads.fell(load)

    def load_fell(self, core: EngineCore) -> None:
        """Note that a count of the core's load has fallen."""
        if self.loads.followers:
            self.loads.fell(self._all[core])

    def unfinished(self, cores: Iterable[EngineCore]) -> int:
        """Return the number of unfinished requests of these cores."""
        return sum(self._all[core].requests for core in cores)

    def fewest_tokens(self) -> int:
        """Return the known tokens of the open core with the fewest."""
        return self._fewest.of(self.loads).known_tokens

    def prompt_tokens(self, index: int) -> int:
        """Return the prompt tokens of request `index`."""
        return self.loads[0].make(index).prompt_tokens

    def cached_tokens(self, index: int) -> int:
        """Return the most prompt tokens of request `index` in the prefix cache of any open core."""
        most = 0
        for load in self.loads:
            seq, pool = load.make(index), load.core.batch.pool
            most = max(most, len(pool.find(seq, (seq.prompt_tokens - 1) // pool.block_size)) * pool.block_size)
        return most


class WholeRequests:
    """Requests that one engine core of a group serves from start to end; the listener of these cores."""

    def __init__(self, group: RoutingGroup, lifecycle: Lifecycle, log: RequestLog) -> None:
        self.group = group
        self._lifecycle, self._log = lifecycle, log
        self.load_fell = group.load_fell

    def place(self, index: int) -> bool:
        """Start request `index`; False if no core is open."""
        placed = self.group.place(index)
        if placed is None:
            return False
        load, seq = placed
        core = load.core
        self._log.replica[index] = load.number
        self._lifecycle.hold(index, core, seq)
        core.submit(seq)
        return True

    def finished(self, core: EngineCore, sequences: Sequence[SequenceState]) -> None:
        """Complete these requests."""
        self.group.count_out(core, len(sequences))
        self._lifecycle.complete([seq.index for seq in sequences])

    def withdrawn(self, core: EngineCore, seq: SequenceState) -> None:
        """End a request that its core has withdrawn."""
        self.group.count_out(core)
        self._lifecycle.withdrawn(seq.index)
