"""How close was the load to capacity?

A busy device does not say: batches grow with the load, and the device is busy nearly always from light loads on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord, Status
from simulator.results.speculation import tokens_per_event
from simulator.results.statistics import BATCHES
from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.schema import Scenario
from simulator.scenario.speculation import FixedLength, Proposer
from simulator.scenario.traffic import ClosedLoop

Floats = NDArray[np.float64]

#: Fewer requests than this are a try, not a load test, and no share of capacity is given for them.
LOAD_TEST = 100
#: Fewer than this say nothing of their load.
_FEWEST = 20
_STEPS = 50_000  # as many as a fit of three numbers needs at the most
#: How many standard errors of the offered work the load must be above capacity not to be so by chance.
_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked of the replicas as a `share` of what they could carry: above 1, they could not keep up.

    `error` is the share's standard error relative to it, were the gaps and the sizes of requests independent draws:
    how far from its mean the load of so many requests may lie. `rate_per_s` is that of the `requests` that came.
    `variation` is how much work varies: the squared coefficients of variation of the gaps and of the sizes of requests,
    or what neighbours of them vary together by, if that is more, as in bursts. `rows` are the requests in order of
    arrival, at `arrivals_ns`, and `work_ns` is how long full replicas would be busy with each of them.
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
        """Whether the share is above 1 by more than chance explains."""
        return self.share > 1 + _ERRORS * self.error


@dataclass(frozen=True, slots=True)
class _StepLaw:
    """A step's time in ns: fixed + a prompt token's x prompt tokens + a decode's x decodes."""

    fixed: float
    prompt_token: float
    decode: float


def is_open_loop(scenario: Scenario) -> bool:
    """Whether requests come no matter how the service does."""
    workload = scenario.workload
    return not isinstance(workload.arrivals, ClosedLoop) and workload.max_concurrency is None


def offered_load(record: RunRecord, scenario: Scenario) -> Load | None:
    """The load that an open-loop workload put on the replicas; None for other workloads, batches and a few requests,
    where the replicas differ, and where full batches have other numbers of drafts than those of this run."""
    if not is_open_loop(scenario) or len(record.pools) > 1:
        return None
    pool = next(iter(scenario.deployment.pools.values()))
    if pool.speculation is not None and _drafts_by_load(pool.speculation):
        return None
    scheduler = pool.scheduler
    active = scheduler.max_num_active_seqs if isinstance(scheduler, VllmScheduler) else None
    seqs, tokens = active or scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    assert seqs is not None and tokens is not None  # the engine's defaults are filled in before a run
    return estimated_load(record, seqs, tokens)


def _drafts_by_load(proposer: Proposer) -> bool:
    """Whether the number of drafts depends on the batch: then neither do this run's steps nor the tokens that they
    bring say what a full batch would do."""
    return proposer.length != FixedLength() or proposer.disable_by_batch_size is not None


def estimated_load(record: RunRecord, max_num_seqs: int, max_num_batched_tokens: int) -> Load | None:
    """The load of all requests that came, finished or not, were batches as large as can be; None if undefined.

    The law of step times is fitted to the run's steps by least squares. At capacity, its fixed part is shared by the
    largest batch: by `max_num_seqs` sequences, or by as many of the usual size as fit the KV memory, and by no more
    than `max_num_batched_tokens`. It is an estimate: step times are extrapolated from the batches that occurred, and
    the load is a mean over the time in which requests arrived.
    """
    requests, steps = record.requests, record.steps
    came = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    rows = np.flatnonzero(came)
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
    share = float(work_ns / span_ns / record.replicas)
    each_ns = sizes * (share * span_ns / max(float(sizes.sum()), 1e-9))
    variation = dispersion(gaps) + dispersion(sizes)
    return Load(share, error, count, count / span_ns * 1e9, variation, rows, arrivals, each_ns)


def _drafts_of_decode(record: RunRecord) -> float:
    """How many drafts a decode has on average; they are part of a step's token budget."""
    decodes = float(np.sum(record.steps.decodes, dtype=float))
    return float(np.sum(record.drafts.draft_tokens, dtype=float)) / decodes if decodes else 0.0


def _work(record: RunRecord) -> tuple[float, float, float]:
    """Prompt tokens, decodes, and sequences in steps: what the steps computed, and what open requests still need."""
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
    """By least squares, no part below 0, and in all as long as the steps were.

    A step's time is what it adds to the replica's: since it was formed, or since the step before it ended.
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
    """The coefficient of variation; 0 if all are 0."""
    mean = float(values.mean())
    return float(values.std()) / mean if mean else 0.0


def dispersion(values: NDArray[np.number]) -> float:
    """The squared coefficient of variation, or that of sums of neighbours times how many these are, if it is more: of
    a twentieth and a hundredth of the values."""
    return max(_variation(values) ** 2, *(_of_sums(values, parts) for parts in (BATCHES, 5 * BATCHES)))


def _of_sums(values: NDArray[np.number], parts: int) -> float:
    length = len(values) // parts
    if length < 2:
        return 0.0
    return _variation(values[: length * parts].reshape(parts, length).sum(axis=1)) ** 2 * length
