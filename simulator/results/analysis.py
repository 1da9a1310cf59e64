"""A run's record together with the quantities that several sections of the summary are derived from."""

from __future__ import annotations

from typing import NamedTuple

from simulator.results.attribution import Parts, attribute
from simulator.results.columns import Status
from simulator.results.dependence import Dependence, dependence
from simulator.results.latency import Latencies
from simulator.results.record import RunRecord
from simulator.results.saturation import Load, offered_load
from simulator.results.stability import above_capacity
from simulator.results.warmup import Selection, select
from simulator.scenario.schema import Scenario


class RunAnalysis(NamedTuple):
    """A record, its scenario, the requests that statistics count, the parts of each request's E2E, and the load.

    `load` is None where it is undefined.
    """

    record: RunRecord
    scenario: Scenario
    selection: Selection
    parts: Parts
    load: Load | None

    @classmethod
    def of(cls, record: RunRecord, scenario: Scenario) -> RunAnalysis:
        """Analyse a finished run."""
        selection = select(record, scenario.run.warmup)
        return cls(record, scenario, selection, attribute(record), offered_load(record, scenario))

    def latencies(self) -> Latencies:
        """Return the latencies of all requests, on the client's clock too if a limit of concurrency delays sending."""
        return Latencies(self.record, self.parts.get("stall"), self._has_client_clock())

    def dependence(self) -> Dependence:
        """Return how much the counted requests depend on each other."""
        unstable = above_capacity(self.record, self.load)
        return dependence(self.record, self.load, self.selection.kept, unstable)

    def _has_client_clock(self) -> bool:
        requests = self.record.requests
        delayed = (requests.arrival_ns > requests.client_ns) & (requests.status != Status.NOT_ARRIVED)
        return self.scenario.workload.max_concurrency is not None or bool(delayed.any())
