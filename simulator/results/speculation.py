"""What the summary says of speculative decoding: what was drafted, what was accepted, and what that cost.

Names are those of vLLM's counters where it has them: `drafts` counts a sequence in a step that verified drafts of it,
`draft_tokens` the drafts, and the acceptance length is 1 + accepted tokens / drafts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import in_arrival_order, number
from simulator.results.record import PoolFacts, RunRecord, segment_events, segment_tokens
from simulator.results.segments import events_of
from simulator.results.statistics import Interval, ratio_interval
from simulator.scenario.reader import plain
from simulator.scenario.schema import Scenario
from simulator.scenario.speculation import Speculation
from simulator.speculation.quality import quality_of

Section = dict[str, Any]
Counts = NDArray[np.int64]


def speculation_section(record: RunRecord, scenario: Scenario) -> Section | None:
    """The section of the pool that speculates; of several, one each by name, in `pools`. None if there is none."""
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
    """How many tokens an event of a stream brought, on average; 1 if nothing did."""
    if not len(record.event_tokens):
        return 1.0
    return float(np.mean(record.event_tokens))


def _section(record: RunRecord, pool: PoolFacts, proposer: Speculation) -> Section:
    quality = quality_of(proposer.verification)
    sequences, drafts, reached, accepted = _by_depth(record, pool)
    section: Section = {
        "method": proposer.TAG,
        "num_speculative_tokens": proposer.num_speculative_tokens,
        "acceptance": _given(plain(proposer.acceptance)),
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


def _given(law: Any) -> Any:
    """A law as the scenario writes it, without what it leaves out."""
    if isinstance(law, list):
        return [_given(each) for each in law]
    if not isinstance(law, dict):
        return law
    return {name: _given(value) for name, value in law.items() if value not in (None, [])}


def _by_depth(record: RunRecord, pool: PoolFacts) -> Counts:
    """(4, depths): sequences, drafts, reached and accepted of `DraftPositions`, of all replicas of the pool."""
    depths = record.draft_positions
    mine = _is_of(pool, depths.replica)
    columns = (depths.sequences, depths.drafts, depths.reached, depths.accepted)
    return np.array([np.bincount(depths.depth[mine], column[mine]) for column in columns]).astype(np.int64)


def _positions(sequences: Counts, reached: Counts, accepted: Counts) -> list[Section]:
    """Of sequences with drafts at a position: in which share those up to it were all accepted, and the same of those in
    which the ones before were (None if there are none)."""
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
    """Means and their intervals. `levels` a verification has on average: as many drafts as it could accept."""
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
    """The 95% interval of the mean tokens of an event for which drafts were verified; None if requests are too few.

    How well drafts are accepted depends on the request: they are the observations, in batches by order of arrival. The
    end of an answer cuts its last event short, so that it is the interval's width that tells of the acceptance.
    """
    requests = len(record.requests.status)
    drafted = np.zeros(len(record.steps.end_ns), bool)
    drafted[record.drafts.step[record.drafts.draft_tokens > 0]] = True
    events, tokens = np.zeros(requests, np.int64), np.zeros(requests, np.int64)
    mine = np.flatnonzero(_is_of(pool, record.segments.replica))
    for some in events_of(record, mine) if len(record.event_tokens) else ():
        # The first event of a segment is what ends a prefill, which verifies nothing.
        counts = drafted[some.row] & (np.diff(some.segment, prepend=-1) == 0)
        request = record.segments.request[some.segment[counts]]
        events += np.bincount(request, minlength=requests)
        tokens += np.bincount(request, some.tokens[counts], requests).astype(np.int64)
    rows = in_arrival_order(record.requests.arrival_ns, events > 0)
    return ratio_interval(tokens[rows], events[rows])


def _work(record: RunRecord, pool: PoolFacts, accepted: int) -> Section:
    """Shares of what the pool's steps computed and took, and the tokens of its events."""
    rows, steps, drafts = record.rows(pool), record.steps, record.drafts
    mine = (drafts.step >= rows.start) & (drafts.step < rows.stop)
    verified, drafting_ns = (
        int(np.sum(column[mine], dtype=np.int64)) for column in (drafts.draft_tokens, drafts.draft_ns)
    )
    computed = verified + sum(
        int(np.sum(column[rows], dtype=np.int64)) for column in (steps.prefill_tokens, steps.decodes)
    )
    busy_ns = int(np.sum(steps.end_ns[rows] - steps.start_ns[rows], dtype=np.int64))
    of_pool = _is_of(pool, record.segments.replica)
    events = int(segment_events(record.segments, steps)[of_pool].sum())
    tokens = int(segment_tokens(record.segments, steps, record.event_tokens)[of_pool].sum())
    shares = {
        "wasted_token_share": (verified - accepted, computed),
        "draft_time_share": (drafting_ns, busy_ns),
        "tokens_per_event": (tokens, events),
    }
    return {name: number(part / whole) for name, (part, whole) in shares.items() if whole}


def _is_of(pool: PoolFacts, replica: NDArray[np.integer]) -> NDArray[np.bool_]:
    return (replica >= pool.first) & (replica < pool.first + pool.cores)
