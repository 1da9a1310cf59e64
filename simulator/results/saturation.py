"""The offered load as a share of the replicas' capacity, estimated from a run's steps.

It differs from the busy share of a device, which is high even under light load, since batches grow with the load.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import stored
from simulator.results.columns import Status
from simulator.results.record import RunRecord
from simulator.results.speculation import tokens_per_event
from simulator.results.statistics import BATCHES
from simulator.scenario.schema import Scenario
from simulator.scenario.speculation import FixedLength, Proposer
from simulator.scenario.traffic import ClosedLoop

Floats = NDArray[np.float64]

#: The fewest requests for which the summary gives a share of capacity.
LOAD_TEST = 100
#: The fewest requests for which a load is estimated.
_FEWEST = 20
_STEPS = 50_000  # the most steps that the fit of three coefficients reads
#: The load exceeds capacity beyond chance if it lies this many standard errors above it.
_ERRORS = 3.0


class Load(NamedTuple):
    """The offered load as a `share` of the replicas' capacity: above 1, the queue grows.

    `error` is the relative standard error of `share` if the interarrival gaps and the sizes of requests were
    independent draws. `requests` is the number of arrivals, `rate_per_s` their rate. `variation` is the sum of the
    dispersions (see `dispersion`) of the gaps and of the sizes; it is larger for bursty arrivals. `rows` are the
    requests in order of arrival, `arrivals_ns` their arrival times, and `work_ns` the busy time of full replicas that
    each of them needs.
    """

    share: float
    error: float
    requests: int
    rate_per_s: float
    variation: float
    rows: NDArray[np.integer] = field(repr=False, compare=False)
    arrivals_ns: NDArray[np.integer] = field(repr=False, compare=False)
    work_ns: Floats = field(repr=False, compare=False)

    @property
    def exceeds(self) -> bool:
        """Return whether the share is above 1 by more than chance explains."""
        return self.share > 1 + _ERRORS * self.error


class _StepLaw(NamedTuple):
    """A linear law of step times in ns: `fixed` + `prompt_token` x prompt tokens + `decode` x decodes."""

    fixed: float
    prompt_token: float
    decode: float


def is_open_loop(scenario: Scenario) -> bool:
    """Return whether arrivals are independent of the service: no closed loop, no limit of concurrency."""
    workload = scenario.workload
    return not isinstance(workload.arrivals, ClosedLoop) and workload.max_concurrency is None


def offered_load(record: RunRecord, scenario: Scenario) -> Load | None:
    """Return the load that an open-loop workload put on the replicas, or None if it is undefined.

    It is undefined for closed loops, for fewer than 20 requests, for requests that arrive all at once, for several
    pools, and for a number of drafts that depends on the batch.
    """
    if not is_open_loop(scenario) or len(record.pools) > 1:
        return None
    pool = next(iter(scenario.deployment.pools.values()))
    if pool.speculation is not None and _drafts_depend_on_load(pool.speculation):
        return None
    scheduler = pool.scheduler
    active = getattr(scheduler, "max_num_active_seqs", None)
    seqs, tokens = active or scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    assert seqs is not None and tokens is not None  # the engine's defaults are filled in before a run
    return estimated_load(record, seqs, tokens)


def _drafts_depend_on_load(proposer: Proposer) -> bool:
    """Return whether the number of drafts depends on the batch.

    If so, neither the step times nor the tokens per step of this run can be extrapolated to full batches.
    """
    return proposer.length != FixedLength() or proposer.disable_by_batch_size is not None


def estimated_load(record: RunRecord, max_num_seqs: int, max_num_batched_tokens: int) -> Load | None:
    """Return the load of all requests that arrived, finished or not; None if it is undefined.

    It is relative to the largest batches that the replicas can run. A linear law of step times is fitted to the run's
    steps by least squares. At capacity, its fixed part is shared by the largest batch: `max_num_seqs` sequences, or as
    many sequences of the mean size as fit the KV memory, and at most `max_num_batched_tokens` tokens. The result is an
    estimate: step times are extrapolated from the batches that occurred, and the load is a mean over the time in which
    requests arrived.
    """
    requests, steps = record.requests, record.steps
    arrived = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    rows = np.flatnonzero(arrived)
    rows = rows[np.argsort(requests.arrival_ns[rows], kind="stable")]
    arrivals = requests.arrival_ns[rows]
    count = len(arrivals)
    if count < _FEWEST or arrivals[0] == arrivals[-1] or not len(steps.end_ns):
        return None
    span_ns = float(arrivals[-1] - arrivals[0]) * count / (count - 1)
    prompts, decodes, sequences = _work(record)
    blocks = float(np.sum(steps.kv_used, dtype=float))
    running = float(np.sum(steps.running, dtype=float))
    largest_batch = max(1.0, min(max_num_seqs, record.pools[0].kv_blocks * running / max(blocks, 1.0)))
    law = _step_law(record)
    decode_tokens = decodes * (1 + _drafts_of_decode(record))
    fewest_steps = max(sequences / largest_batch, (prompts + decode_tokens) / max_num_batched_tokens)
    work_ns = law.fixed * fewest_steps + law.prompt_token * prompts + law.decode * decodes
    decodes_of = np.asarray(requests.output_tokens[rows], float) / tokens_per_event(record)
    sizes = law.prompt_token * requests.prompt_tokens[rows] + (law.decode + law.fixed / largest_batch) * decodes_of
    gaps = np.diff(arrivals)
    error = math.hypot(_variation(gaps), _variation(sizes)) / math.sqrt(count)
    share = float(work_ns / span_ns / (record.core_time_ns / max(record.duration_ns, 1)))
    each_ns = sizes * (share * span_ns / max(float(sizes.sum()), 1e-9))
    variation = dispersion(gaps) + dispersion(sizes)
    columns = (stored(column) for column in (rows, arrivals, each_ns))
    return Load(share, error, count, count / span_ns * 1e9, variation, *columns)


def _drafts_of_decode(record: RunRecord) -> float:
    """Return the mean number of draft tokens per decode; drafts count against a step's token budget."""
    decodes = float(np.sum(record.steps.decodes, dtype=float))
    return float(np.sum(record.drafts.draft_tokens, dtype=float)) / decodes if decodes else 0.0


def _work(record: RunRecord) -> tuple[float, float, float]:
    """Return prompt tokens, decodes and sequences summed over steps: those computed, and those still to be computed."""
    requests, steps = record.requests, record.steps
    prompts, decodes, sequences = (
        float(np.sum(column, dtype=float)) for column in (steps.prefill_tokens, steps.decodes, steps.running)
    )
    open_ = requests.status == Status.IN_FLIGHT
    emitted = np.asarray(requests.emitted_tokens[open_], float)
    left = np.maximum(requests.output_tokens[open_] - emitted, 0.0) / tokens_per_event(record)
    no_token = requests.first_token_ns[open_] < 0
    prompts += float(np.sum(requests.prompt_tokens[open_][no_token], dtype=float))
    decodes += float(left.sum()) - np.count_nonzero(no_token)
    return prompts, decodes, sequences + float(left.sum())


def _step_law(record: RunRecord) -> _StepLaw:
    """Return the law fitted by least squares, with no negative coefficient, scaled to the total time of the steps.

    A step's time counts from its forming or from the end of the step before it, whichever is later.
    """
    steps = record.steps
    rows = np.arange(0, len(steps.end_ns), 1 + len(steps.end_ns) // _STEPS)
    before_ns = np.where(np.isin(rows, steps.offsets), 0, steps.end_ns[np.maximum(rows - 1, 0)])
    times_ns = (steps.end_ns[rows] - np.maximum(steps.sched_ns[rows], before_ns)).astype(float)
    terms = [np.ones(len(rows)), steps.prefill_tokens[rows].astype(float), steps.decodes[rows].astype(float)]
    moments = np.array([[float(np.sum(a * b)) for b in terms] for a in terms])
    targets = np.array([float(np.sum(a * times_ns)) for a in terms])
    fitted: Floats = np.maximum(np.linalg.lstsq(moments, targets, rcond=None)[0], 0.0)
    in_all_ns = float(np.sum(fitted * moments[0]))
    if in_all_ns > 0:
        fitted *= times_ns.sum() / in_all_ns
    return _StepLaw(*fitted.tolist())


def _variation(values: NDArray[np.number]) -> float:
    """Return the coefficient of variation; 0 if the mean is 0."""
    mean = float(values.mean())
    return float(values.std()) / mean if mean else 0.0


def dispersion(values: NDArray[np.number]) -> float:
    """Return the squared coefficient of variation of `values`, or that of their batch sums if it is larger.

    The values in their order are cut into 20 and into 100 batches of equal length. The squared coefficient of
    variation of the batches' sums is multiplied by the length of a batch: for independent values it equals that of
    the values, for values that vary together with their neighbours it is larger.
    """
    return max(_variation(values) ** 2, *(_batch_dispersion(values, batches) for batches in (BATCHES, 5 * BATCHES)))


def _batch_dispersion(values: NDArray[np.number], batches: int) -> float:
    length = len(values) // batches
    if length < 2:
        return 0.0
    return _variation(values[: length * batches].reshape(batches, length).sum(axis=1)) ** 2 * length
