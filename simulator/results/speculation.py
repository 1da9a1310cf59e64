"""The section `speculation` of the summary: drafted and accepted tokens, and their cost.

Names are those of vLLM's counters where it has them: `drafts` counts the sequences with drafts over all steps,
`draft_tokens` the draft tokens, and the acceptance length is 1 + accepted tokens / drafts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import in_arrival_order, number
from simulator.results.record import PoolFacts, RunRecord, segment_events, segment_tokens
from simulator.results.segments import events_of
from simulator.results.statistics import Interval, ratio_interval
from simulator.scenario.plain_values import plain
from simulator.scenario.schema import Scenario
from simulator.scenario.speculation import Speculation

Section = dict[str, Any]
Counts = NDArray[np.int64]


def speculation_section(record: RunRecord, scenario: Scenario) -> Section | None:
    """Return the section of the pool that speculates, or of several such pools by name in `pools`; None without one."""
    proposers = {name: pool.speculation for name, pool in scenario.deployment.pools.items()}
    sections = {
        pool.name: _section(record, pool, proposer)
        for pool in record.pools
        if (proposer := proposers.get(pool.name)) is not None
    }
    if len(sections) > 1:
        return {"pools": sections}
    return next(iter(sections.values()), None)


def tokens_per_event(record: RunRecord) -> float:
    """Return the mean number of tokens of an event; 1 without events."""
    if not len(record.event_tokens):
        return 1.0
    return float(np.mean(record.event_tokens))


def _section(record: RunRecord, pool: PoolFacts, proposer: Speculation) -> Section:
    from simulator.speculation.quality import quality_of

    quality = quality_of(proposer.verification)
    sequences, drafts, reached, accepted = _by_depth(record, pool)
    section: Section = {
        "method": proposer.TAG,
        "num_speculative_tokens": proposer.num_speculative_tokens,
        "acceptance": _without_empty(plain(proposer.acceptance)),
        "verification": proposer.verification.rule,
        "quality": quality.kind,
        "total_variation": number(quality.total_variation),
        "basis": quality.basis,
        "drafts": int(sequences.max(initial=0)),
        "draft_tokens": int(drafts.sum()),
        "accepted_tokens": int(accepted.sum()),
    }
    if section["drafts"]:
        section |= _acceptance(record, pool, section, levels=int(sequences.sum()) / section["drafts"])
        section["per_position"] = _positions(sequences, reached, accepted)
    return section | _work(record, pool, section["accepted_tokens"])


def _without_empty(law: Any) -> Any:
    """Return a law of acceptance as the scenario writes it, without empty fields."""
    if isinstance(law, list):
        return [_without_empty(each) for each in law]
    if not isinstance(law, dict):
        return law
    return {name: _without_empty(value) for name, value in law.items() if value not in (None, [])}


def _by_depth(record: RunRecord, pool: PoolFacts) -> Counts:
    """Return sequences, drafts, reached and accepted of `DraftPositions`, summed over the pool's replicas.

    Shape: (4, depths).
    """
    depths = record.draft_positions
    in_pool = _is_in_pool(pool, depths.replica)
    columns = (depths.sequences, depths.drafts, depths.reached, depths.accepted)
    return np.array([np.bincount(depths.depth[in_pool], column[in_pool]) for column in columns]).astype(np.int64)


def _positions(sequences: Counts, reached: Counts, accepted: Counts) -> list[Section]:
    """Return the acceptance at each draft position.

    `cumulative` is the share of sequences with a draft at the position for which all drafts up to it are accepted;
    `conditional` is that share among the sequences for which all drafts before it are accepted (None if there are
    none).
    """
    counts = zip(sequences.tolist(), reached.tolist(), accepted.tolist(), strict=True)
    return [
        {
            "position": position,
            "cumulative": number(hits / count) if count else 0.0,
            "conditional": number(hits / tries) if tries else None,
        }
        for position, (count, tries, hits) in enumerate(counts, 1)
    ]


def _acceptance(record: RunRecord, pool: PoolFacts, counts: Section, levels: float) -> Section:
    """Return the mean acceptance with intervals; `levels` is the mean number of drafted positions per verification."""
    per_draft = counts["accepted_tokens"] / counts["drafts"]
    a_draft = counts["draft_tokens"] / counts["drafts"]
    spread = _accepted_interval(record, pool)
    half_width = None if spread is None else (spread[1] - spread[0]) / 2
    bounds = None if half_width is None else (max(per_draft - half_width, 0.0), min(per_draft + half_width, levels))
    return {
        "acceptance_length": number(1 + per_draft),
        "draft_acceptance_rate": number(per_draft / a_draft),
        "ci95": {
            "acceptance_length": None if bounds is None else [number(1 + bound) for bound in bounds],
            "draft_acceptance_rate": None if bounds is None else [number(bound / a_draft) for bound in bounds],
        },
    }


def _accepted_interval(record: RunRecord, pool: PoolFacts) -> Interval:
    """Return the 95% interval of the mean number of tokens of an event with verified drafts; None for small samples.

    Acceptance depends on the request: requests are the observations, in batches by order of arrival. The end of an
    answer truncates its last event, so that only the width of the interval is used.
    """
    requests = len(record.requests.status)
    drafted = np.zeros(len(record.steps.end_ns), bool)
    drafted[record.drafts.step[record.drafts.draft_tokens > 0]] = True
    events, tokens = np.zeros(requests, np.int64), np.zeros(requests, np.int64)
    in_pool = np.flatnonzero(_is_in_pool(pool, record.segments.replica))
    for some in events_of(record, in_pool) if len(record.event_tokens) else ():
        # The first event of a segment ends a prefill, and no drafts are verified in it.
        counts = drafted[some.row] & (np.diff(some.segment, prepend=-1) == 0)
        request = record.segments.request[some.segment[counts]]
        events += np.bincount(request, minlength=requests)
        tokens += np.bincount(request, some.tokens[counts], requests).astype(np.int64)
    rows = in_arrival_order(record.requests.arrival_ns, events > 0)
    return ratio_interval(tokens[rows], events[rows])


def _work(record: RunRecord, pool: PoolFacts, accepted: int) -> Section:
    """Return the shares of wasted tokens and of drafting time in the pool's steps, and the tokens per event."""
    rows, steps, drafts = record.rows(pool), record.steps, record.drafts
    in_pool = (drafts.step >= rows.start) & (drafts.step < rows.stop)
    verified, drafting_ns = (
        int(np.sum(column[in_pool], dtype=np.int64)) for column in (drafts.draft_tokens, drafts.draft_ns)
    )
    computed = verified + sum(
        int(np.sum(column[rows], dtype=np.int64)) for column in (steps.prefill_tokens, steps.decodes)
    )
    busy_ns = int(np.sum(steps.end_ns[rows] - steps.start_ns[rows], dtype=np.int64))
    segments_in_pool = _is_in_pool(pool, record.segments.replica)
    events = int(segment_events(record.segments, steps)[segments_in_pool].sum())
    tokens = int(segment_tokens(record.segments, steps, record.event_tokens)[segments_in_pool].sum())
    shares = {
        "wasted_token_share": (verified - accepted, computed),
        "draft_time_share": (drafting_ns, busy_ns),
        "tokens_per_event": (tokens, events),
    }
    return {name: number(part / whole) for name, (part, whole) in shares.items() if whole}


def _is_in_pool(pool: PoolFacts, replica: NDArray[np.integer]) -> NDArray[np.bool_]:
    return (replica >= pool.first) & (replica < pool.first + pool.cores)
