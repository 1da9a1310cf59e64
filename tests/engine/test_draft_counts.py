"""Counts of drafts by outcome, by hand for varying lengths and for a truncated tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.testing import assert_array_equal

from simulator.engine.batches.draft_counts import DraftCounts
from simulator.scenario.speculation import Eagle


def counted(outcomes: Sequence[tuple[int, int]], tree: tuple[int, ...] = (1, 1, 1)) -> DraftCounts:
    """Return the counts of verifications with these numbers of drafts, and of accepted ones."""
    counts = DraftCounts(Eagle(num_speculative_tokens=sum(tree), tree=tree))
    counts.add(*(bytes(column) for column in zip(*outcomes, strict=True)))
    return counts


def test_of_drafts_of_several_lengths_only_those_that_were_verified_count() -> None:
    """Single drafts were all accepted, pairs mostly not: the rate of the second is not computed from the first."""
    sequences, drafts, reached, accepted = counted([(1, 1), (1, 1), (3, 0), (3, 0), (3, 1), (3, 3), (0, 0)]).by_depth()
    assert sequences.tolist() == drafts.tolist() == [6, 4, 4]
    assert reached.tolist() == [6, 2, 1]
    assert accepted.tolist() == [4, 1, 1]


def test_one_by_one_and_all_at_once_count_alike() -> None:
    draw = np.random.default_rng(9)
    drafts = draw.integers(0, 4, 500)
    outcomes = [(count, int(draw.integers(0, count + 1))) for count in drafts.tolist()]
    together, apart = counted(outcomes), counted([(0, 0)])
    positions = together.by_depth()
    for count, accepted in outcomes:
        if count:
            apart.outcomes[count][accepted] += 1
    assert together.outcomes == apart.outcomes
    assert_array_equal(apart.by_depth(), positions)
    assert_array_equal(positions[0, 0], np.count_nonzero(drafts))


def test_a_tree_that_is_cut_short_was_verified_all_the_same() -> None:
    """Levels of 3 and 2 drafts: of 2 drafts none can be accepted, and of 4 one; vLLM counts each as a draft of its
    own (`observe_draft`), however few candidates there are."""
    counts = counted([(2, 0), (4, 1), (5, 2), (5, 0)], (3, 2))
    assert [counts.depth_of[drafts] for drafts in (2, 3, 4, 5)] == [0, 1, 1, 2]
    sequences, drafts, reached, accepted = counts.by_depth()
    assert sequences.tolist() == [4, 3]
    assert drafts.tolist() == [2 + 3 + 3 + 3, 1 + 2 + 2]
    assert reached.tolist() == [4, 2]
    assert accepted.tolist() == [2, 1]
