"""The complete vLLM policy on a batch of its own: no clock, no events.

Expected numbers are those of vLLM's own scheduler tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.engine.batches.explicit import ExplicitBatch
from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.engine.batches.interface import BatchContext
from simulator.memory import BlockPool, PrefixPool, text_keys
from simulator.scenario.schedulers import VllmScheduler
from simulator.scheduling import PolicySetup, Speculation, TrackedSequence
from simulator.scheduling.vllm_explicit import ExplicitVllmPolicy
from simulator.scheduling.vllm_settings import vllm_limits


class Script:
    """A speculator that proposes `k` drafts after every token, and accepts scripted numbers by request, then none."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.accepts: dict[int, list[int]] = {}

    def length(self, running: int) -> tuple[int, int]:
        return self.k, self.k

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        return self.accepts.get(seq.index, []).pop(0) if self.accepts.get(seq.index) else 0

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        return self.k


class Log:
    """A pool that records lookups in the prefix cache."""

    def __init__(self) -> None:
        self.lookups: list[tuple[int, int, int]] = []

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None: ...

    def preempted(self, index: int, lost_tokens: int) -> None: ...

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        self.lookups.append((index, queried_tokens, cached_tokens))


class Stage:
    """A scheduler with its batch. Requests answer with `output` tokens."""

    def __init__(
        self, blocks: int = 10_000, output: int = 100, spec: Speculation | None = None, **settings: Any
    ) -> None:
        scheduler = VllmScheduler(version="none", **settings)
        self.pool = (PrefixPool if scheduler.enable_prefix_caching else BlockPool)(blocks, 16)
        self.policy = ExplicitVllmPolicy(PolicySetup(scheduler, blocks, 10**6, spec))
        self.script = Script(spec.k if spec else 0)
        self.log = Log()
        self.output = output
        self.next_token = spec.next_token if spec else 0
        depth, requeue = 2 if scheduler.async_scheduling else 1, vllm_limits(scheduler).requeue
        self.batch = ExplicitBatch(BatchContext(0, self.pool, self.log, [output] * 100, depth, requeue=requeue))
        if spec:
            self.batch.speculate(self.script)
        self.count = 0

    def add(
        self, *prompts: int, priority: int = 0, arrival: int | None = None, prefix: int = 0
    ) -> list[TrackedSequence]:
        new = []
        for prompt in prompts:
            at = self.count if arrival is None else arrival
            shared = text_keys([(0, prefix)], prompt, 16, self.next_token)
            new.append(TrackedSequence(self.count, prompt, self.output, (priority, at), shared))
            self.batch.add(new[-1])
            self.count += 1
        return new

    def form(self) -> ExplicitStep:
        step = self.batch.advance(self.policy.schedule(self.batch, self.pool))
        assert step is not None
        self.batch.check()
        return step

    def step(self) -> dict[int, int]:
        """Form and complete a step; the tokens that each request computes in it."""
        self.last = self.form()
        self.batch.complete(self.last)
        return {entry.seq.index: entry.tokens for entry in self.last.entries}

    @property
    def preempted(self) -> list[int]:
        return [seq.index for seq in self.last.plan.preempted]

    @property
    def running(self) -> list[int]:
        return [seq.index for seq in self.batch.order]

    @property
    def waiting(self) -> list[int]:
        return [seq.index for seq in self.batch.waiting]


def test_everything_fits_one_step() -> None:
    stage = Stage()
    stage.add(*[10] * 10)
    assert list(stage.step()) == list(range(10))


def test_long_prefill_threshold() -> None:
    stage = Stage(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stage.add(800, 800, 800)
    assert [list(stage.step().values()) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


def test_an_adaptive_threshold_is_at_least_a_fair_share() -> None:
    stage = Stage(
        max_num_batched_tokens=1024, long_prefill_token_threshold=100, long_prefill_token_threshold_adaptive=True
    )
    stage.add(800, 800)
    assert stage.step() == {0: 512, 1: 512}
    stage = Stage(max_num_batched_tokens=1024, long_prefill_token_threshold=100)
    stage.add(800)
    assert stage.step() == {0: 800}  # alone, it delays no other request


@pytest.mark.parametrize(("chunked", "admitted"), [(True, [0, 1]), (False, [0])])
def test_chunking_admits_a_part_of_the_next_prompt(chunked: bool, admitted: list[int]) -> None:
    stage = Stage(max_num_batched_tokens=1024, max_num_seqs=3, enable_chunked_prefill=chunked)
    stage.add(800, 800, 10, 10)
    assert list(stage.step()) == admitted  # strict order: the short ones behind are not pulled forward


def test_a_token_in_flight_at_a_preemption_is_kept() -> None:
    stage = Stage(10, async_scheduling=True)
    first, second = stage.add(80, 80)
    prefill, decode = stage.form(), stage.form()
    assert [entry.seq for entry in decode.entries] == [first]
    assert decode.plan.preempted == [second]
    assert (second.blocks, second.computed, second.known) == (0, 0, 80)
    stage.batch.complete(prefill)
    assert (second.known, second.target, first.known) == (81, 81, 81)


def test_drafts_after_a_chunk_that_is_not_the_last_are_dropped() -> None:
    stage = Stage(spec=Speculation("ngram", 3), max_num_batched_tokens=50)
    (seq,) = stage.add(80)
    assert stage.step() == {0: 50}
    assert seq.drafts == 0
    assert stage.step() == {0: 30}
    assert stage.last.entries[0].drafts == 0
    assert stage.step() == {0: 4}


def test_accepted_drafts_are_tokens() -> None:
    stage = Stage(spec=Speculation("ngram", 3))
    first, second = stage.add(1, 1)
    assert stage.step() == {0: 1, 1: 1}
    stage.script.accepts = {0: [3], 1: [1]}
    assert stage.step() == {0: 4, 1: 4}
    assert stage.last.emitted == [(first, 4), (second, 2)]
    assert stage.last.accepted == [(first, 3, 3), (second, 3, 1)]
    assert (first.computed, second.computed) == (5, 3)


def test_eagle_takes_blocks_ahead() -> None:
    stage = Stage(3, spec=Speculation("eagle", 3))
    stage.add(30)
    stage.step()
    assert stage.pool.blocks - stage.pool.free == 3  # 30 tokens and 3 drafts


def test_a_draft_model_costs_budget() -> None:
    stage = Stage(spec=Speculation("draft_model", 2), max_num_batched_tokens=20)
    stage.add(10, 30)
    assert stage.step() == {0: 10, 1: 8}


def test_a_waiting_request_with_one_token_left_is_padded() -> None:
    stage = Stage(spec=Speculation("ngram", 3))
    stage.add(10)
    stage.step()
    (seq,) = stage.add(1)
    assert stage.step() == {0: 4, 1: 4}
    assert (seq.known, seq.computed) == (2, 1)  # dummies are never accepted


@pytest.mark.parametrize(
    ("requests", "order"),
    [
        ([(2, 0), (0, 0), (1, 0)], [1, 2, 0]),
        ([(1, 3), (1, 1), (1, 2)], [1, 2, 0]),
        ([(2, 1), (1, 3), (1, 2), (0, 4)], [3, 2, 1, 0]),
    ],
)
def test_priority_then_arrival(requests: list[tuple[int, int]], order: list[int]) -> None:
    stage = Stage(scheduling_policy="priority")
    for priority, arrival in requests:
        stage.add(10, priority=priority, arrival=arrival)
    assert list(stage.step()) == order


def test_a_slot_is_no_reason_to_preempt() -> None:
    stage = Stage(scheduling_policy="priority", max_num_seqs=2)
    for priority in (3, 1, 2, 0):
        stage.add(10, priority=priority, arrival=0)
    assert list(stage.step()) == [3, 1]
    assert stage.waiting == [2, 0]
    stage = Stage(scheduling_policy="priority", max_num_seqs=1)
    stage.add(10, priority=9)
    stage.step()
    stage.add(10, priority=0)
    assert stage.step() == {0: 1}
    assert stage.preempted == []


def test_the_lowest_priority_gives_way() -> None:
    stage = Stage(5, scheduling_policy="priority")
    stage.add(32, priority=5)
    stage.step()
    stage.add(32, priority=0)
    assert stage.step() == {0: 1, 1: 32}
    assert stage.step() == {1: 1}
    assert (stage.preempted, stage.running, stage.waiting) == ([0], [1], [0])


def test_a_victim_that_was_scheduled_leaves_the_step() -> None:
    stage = Stage(4, scheduling_policy="priority")
    stage.add(30, priority=1)
    stage.step()
    stage.add(32, priority=0)
    assert stage.step() == {0: 1, 1: 32}
    assert stage.step() == {1: 1}
    assert stage.preempted == [0]


def test_prefills_wait_for_their_interval() -> None:
    stage = Stage(max_num_batched_tokens=1000, prefill_schedule_interval=3)
    stage.add(10)
    assert stage.step() == {0: 10}  # nothing runs: no hold
    stage.add(10)
    assert stage.step() == {0: 1}
    assert stage.step() == {0: 1}
    assert stage.step() == {0: 1, 1: 10}


def test_chunks_under_way_are_held_too() -> None:
    stage = Stage(max_num_batched_tokens=100, prefill_schedule_interval=3)
    stage.add(10)
    stage.step()
    stage.add(150)
    assert [stage.step() for _ in range(6)] == [{0: 1}, {0: 1}, {0: 1, 1: 99}, {0: 1}, {0: 1}, {0: 1, 1: 51}]


def test_a_full_step_lifts_the_hold() -> None:
    stage = Stage(max_num_batched_tokens=200, prefill_schedule_interval=4)
    stage.add(200, 200)
    assert stage.step() == {0: 200}  # the second is left over
    assert stage.step() == {0: 1, 1: 199}


def test_lookups_are_counted_at_admission_and_again_when_resumed() -> None:
    stage = Stage(5, output=15, enable_prefix_caching=True, scheduler_reserve_full_isl=False)
    stage.add(32, 48)
    stage.step()
    assert stage.log.lookups == [(0, 32, 0), (1, 48, 0)]
    stage.step()
    assert stage.preempted == [1]
    while stage.waiting == [1]:
        stage.step()  # it is looked up in each of these steps, and does not fit
    assert stage.log.lookups[2:] == [(1, 49, 32)]


def test_without_caching_nothing_is_found() -> None:
    stage = Stage(4)
    stage.add(64, prefix=64)
    stage.step()
    (seq,) = stage.add(16, prefix=16)
    assert stage.pool.free == 0
    assert 1 not in stage.step()
    assert seq.cached == 0


def test_a_request_finds_blocks_that_the_same_step_will_compute() -> None:
    stage = Stage(enable_prefix_caching=True)
    stage.add(40, 40, prefix=32)
    assert stage.step() == {0: 40, 1: 8}


def test_eagle_finds_a_block_by_the_token_after_it() -> None:
    stage = Stage(enable_prefix_caching=True, spec=Speculation("eagle", 3))
    first, second = stage.add(48, 48, prefix=48)
    step = stage.form()
    assert (first.cached, second.cached) == (0, 32)
    assert stage.pool.hashed == 2  # the token after the third block is not there yet
    stage.batch.complete(step)
    assert stage.pool.hashed == 4  # it is now, and each request's own


def test_more_prompts_than_active_sequences_wait() -> None:
    stage = Stage(max_num_seqs=8, max_num_active_seqs=2)
    stage.add(10, 10, 10)
    assert stage.step() == {0: 10, 1: 10}


# --- options without a counterpart in vLLM


def test_the_victim_with_the_fewest_computed_tokens() -> None:
    stage = Stage(10, preemption_victim="least_computed")
    stage.add(32, 112)
    stage.step()
    assert stage.step() == {1: 1}
    assert stage.preempted == [0]


@pytest.mark.parametrize(("first", "order"), [(False, [0, 2, 1]), (True, [0, 1, 2])])
def test_preempted_requests_ahead_of_newcomers_of_higher_priority(first: bool, order: list[int]) -> None:
    stage = Stage(6, scheduling_policy="priority", preempted_first=first, max_num_seqs=2)
    stage.add(48, priority=0)
    stage.add(48, priority=5)
    stage.step()
    stage.step()
    assert stage.preempted == [1]
    stage.add(48, priority=1)
    assert stage.running + stage.waiting == order


def test_a_limit_on_prompts_partly_computed() -> None:
    stage = Stage(max_num_batched_tokens=100, long_prefill_token_threshold=40, max_num_partial_prefills=1)
    stage.add(100, 100, 10)
    assert [stage.step() for _ in range(3)] == [{0: 40}, {0: 40}, {0: 20, 1: 40, 2: 10}]
