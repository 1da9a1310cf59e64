"""How close was the load to capacity?

A busy device does not say: batches grow with the load, and the device is busy nearly always from light loads on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord

_STEPS = 50_000  # as many as a fit of three numbers needs at the most


def estimated_load(record: RunRecord, max_num_seqs: int) -> float:
    """The load as a share of what the replicas could carry, were their batches as large as can be.

    A step's time is taken as fixed + a prompt token's x prompt tokens + a decode's x decodes, fitted by least
    squares to the run's steps. At capacity, the fixed part is shared by the largest batch: by `max_num_seqs`
    sequences, or by as many of the usual size as fit the KV memory. It is an estimate: step times are extrapolated
    from the batches that occurred, and the load is a mean over the time in which requests arrived.
    """
    steps = record.steps
    span_ns = int(record.requests.arrival_ns.max(initial=record.start_ns)) - record.start_ns
    if span_ns <= 0 or not len(steps.end_ns):
        return 0.0
    fixed, per_prompt_token, per_decode = _step_law_ns(record)
    prompt_tokens, decodes, sequences, blocks = (
        float(np.sum(column, dtype=float))
        for column in (steps.prefill_tokens, steps.decodes, steps.running, steps.kv_used)
    )
    largest_batch = max(1.0, min(max_num_seqs, record.kv_blocks * sequences / max(blocks, 1.0)))
    work_ns = fixed * sequences / largest_batch + per_prompt_token * prompt_tokens + per_decode * decodes
    return float(work_ns / span_ns / record.replicas)


def _step_law_ns(record: RunRecord) -> NDArray[np.float64]:
    """The fixed part of a step's time, that of a prompt token and that of a decode, by least squares, at least 0.

    A step's time is what it adds to the replica's: since it was formed, or since the step before it ended.
    """
    steps = record.steps
    rows = np.arange(0, len(steps.end_ns), 1 + len(steps.end_ns) // _STEPS)
    before_ns = np.where(np.isin(rows, steps.offsets), 0, steps.end_ns[np.maximum(rows - 1, 0)])
    times_ns = (steps.end_ns[rows] - np.maximum(steps.sched_ns[rows], before_ns)).astype(float)
    terms = [np.ones(len(rows)), steps.prefill_tokens[rows].astype(float), steps.decodes[rows].astype(float)]
    moments = np.array([[float(np.sum(a * b)) for b in terms] for a in terms])
    targets = np.array([float(np.sum(a * times_ns)) for a in terms])
    fitted: NDArray[np.float64] = np.linalg.lstsq(moments, targets, rcond=None)[0]
    return np.maximum(fitted, 0.0)
