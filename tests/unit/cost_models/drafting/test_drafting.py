"""Cost of a speculating step: the target's part, and that of the proposer beside or after it."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    NO_HOST,
    BatchShape,
    HostModel,
    Launch,
    LinearLaw,
    LookupProposer,
    MedusaProposer,
    ModelProposer,
    Proposer,
    Roofline,
    SpeculativeCost,
    StepCost,
    TimedProposer,
    draft_model_proposer,
    draft_step_ns,
    eagle3_head,
    eagle_head,
    head_proposer,
    launch_of,
    load_gpu,
    load_host,
    load_model,
    mtp_head,
)
from cost_models.shape import costs_one_by_one
from tests.costs import build_roofline, drafter_place

TARGET, DRAFT, DEEPSEEK = load_model("llama-3.1-70b"), load_model("llama-3.1-8b"), load_model("deepseek-v3")
PLACE = drafter_place(load_gpu("h100-sxm"), tensor_parallel=4, max_num_batched_tokens=512, max_num_seqs=64)
NONE = Launch()
TREE = (4, 4, 4, 2)
LAW = LinearLaw(base_ns=1_000, per_token_ns=10, per_context_token_ns=1, host_ns=70)


@cache
def target(data_parallel: int = 1) -> Roofline:
    model = DEEPSEEK if data_parallel > 1 else TARGET
    return build_roofline(model, PLACE.gpu, tensor_parallel=4, data_parallel=data_parallel, max_num_batched_tokens=512)


@cache
def proposer(kind: str) -> Proposer:
    chain = (1,) * 7
    match kind:
        case "eagle":
            return head_proposer(eagle_head(TARGET), chain, PLACE, "auto", NONE)
        case "eagle3 tree":
            return head_proposer(eagle3_head(TARGET), TREE, PLACE, "auto", Launch(400_000, 500))
        case "draft model":
            return draft_model_proposer(DRAFT, chain, PLACE, "auto", NONE)
        case "window":
            return draft_model_proposer(load_model("gpt-oss-20b"), chain, PLACE, "auto", NONE)
        case "medusa":
            return MedusaProposer(TARGET, 4, PLACE)
        case "timed":
            return TimedProposer(500_000)
    return LookupProposer(10_000)


KINDS = ("eagle", "eagle3 tree", "draft model", "window", "medusa", "timed", "lookup")
CHUNKS = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 20_000)), max_size=2)


def shape_of(contexts: list[int], chunks: list[tuple[int, int]], drafts: int, proposed: int) -> BatchShape:
    """Return a step in which every decode verifies `drafts`, and every chunk ends its prompt."""
    count = len(contexts)
    sampled = count + len(chunks)
    return BatchShape(count, sum(contexts), 0, tuple(chunks), 0, sampled, count * drafts, proposed)


# --- beside or behind the target ------------------------------------------------------------------------------------


def test_serial_proposals_add_and_overlapped_ones_count_if_they_are_longer() -> None:
    shape = shape_of([100, 100], [], 3, 3)
    verifying = LAW.step_cost(shape).device_ns
    for pass_ns in (100, 1_000):
        serial = SpeculativeCost(LAW, TimedProposer(pass_ns)).step_cost(shape)
        assert serial == StepCost(verifying + 3 * pass_ns, 70, 3 * pass_ns)
        overlapped = SpeculativeCost(LAW, TimedProposer(pass_ns), overlapped=True).step_cost(shape)
        assert overlapped.device_ns == max(verifying, 3 * pass_ns)
        assert overlapped.draft_ns == overlapped.device_ns - verifying


def test_a_step_that_verifies_or_proposes_takes_its_own_part_once() -> None:
    cost = SpeculativeCost(LAW, TimedProposer(1_000), step_ns=50)
    plain, proposing = shape_of([100], [], 0, 0), shape_of([100], [], 0, 2)
    verifying, both = shape_of([102], [], 2, 0), shape_of([102], [], 2, 2)
    assert cost.step_cost(plain) == LAW.step_cost(plain)
    assert [cost.step_cost(shape).draft_ns for shape in (proposing, verifying, both)] == [2_050, 50, 2_050]
    assert SpeculativeCost(LAW, TimedProposer(1), True, 50).step_cost(proposing).draft_ns == 50
    assert cost.decode_run(verifying, 3).tolist() == [time + 50 for time in LAW.decode_run(verifying, 3).tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_without_drafts_a_decode_step_is_the_targets_to_the_bit(kind: str) -> None:
    cost, shape = SpeculativeCost(target(), proposer(kind)), shape_of([700, 2_000, 31], [], 0, 0)
    assert cost.step_cost(shape) == target().step_cost(shape)
    assert cost.decode_run(shape, 9).tolist() == target().decode_run(shape, 9).tolist()
    columns = [np.array([3, 2]), np.array([2_731, 900]), np.array([0, 0])]
    for mine, own in zip(cost.decode_costs(*columns), target().decode_costs(*columns), strict=True):
        assert mine.tolist() == own.tolist()


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_many_steps_with_drafts_cost_as_much_as_one_by_one(kind: str, overlapped: bool) -> None:
    cost, rng = SpeculativeCost(target(), proposer(kind), overlapped, step_ns=300), np.random.default_rng(3)
    decodes = rng.integers(1, 40, 300)
    context = decodes * rng.integers(1, 3_000, 300)
    drafts, proposed = rng.integers(0, 5, 300) * decodes, rng.choice([0, 2, 4], 300)
    columns = (decodes, context, np.zeros(300, np.int64), drafts, proposed)
    one_by_one = costs_one_by_one(cost, *columns)
    for mine, other in zip(cost.drafted_costs(*columns), one_by_one, strict=True):
        assert mine.tolist() == other.tolist()
    assert len(set(one_by_one[0].tolist())) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cost_model_promises(kind: str) -> None:
    cost, shape = SpeculativeCost(target(), proposer(kind), step_ns=300), shape_of([700, 2_000, 31], [], 4, 4)
    steps = [shape._replace(decode_context=shape.decode_context + 3 * step) for step in range(5)]
    assert cost.decode_run(shape, 5).tolist() == [cost.step_cost(step).device_ns for step in steps]
    assert sum(cost.breakdown(shape).values()) == cost.step_cost(shape).device_ns
    with pytest.raises(ValueError, match="pure decode step"):
        cost.decode_run(shape_of([5], [(3, 0)], 1, 1), 2)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.booleans(),
    st.lists(st.integers(1, 20_000), max_size=40),
    CHUNKS,
    st.integers(0, 4),
    st.data(),
)
def test_more_work_never_takes_less_and_none_less_than_its_bound(
    kind: str, overlapped: bool, contexts: list[int], chunks: list[tuple[int, int]], proposed: int, data: st.DataObject
) -> None:
    cost = SpeculativeCost(target(), proposer(kind), overlapped)
    less = shape_of(contexts, chunks, proposed, proposed)
    longer = [context + data.draw(st.integers(0, 500)) for context in contexts]
    grown = [(tokens + data.draw(st.integers(0, 30)), context) for tokens, context in chunks]
    more = shape_of(longer, grown, proposed, min(proposed + data.draw(st.integers(0, 1)), 4))
    found = [cost.step_cost(shape) for shape in (less, more)]
    assert found[0].device_ns <= found[1].device_ns
    for shape, step in zip((less, more), found, strict=True):
        assert step.device_ns >= cost.bound_ns(shape)
        assert step.device_ns - step.draft_ns == target().step_cost(shape).device_ns


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(1, 20_000), max_size=40), CHUNKS, st.integers(0, 4))
def test_one_rank_alone_takes_as_long_as_no_ranks(
    kind: str, contexts: list[int], chunks: list[tuple[int, int]], proposed: int
) -> None:
    shape, drafting = shape_of(contexts, chunks, proposed, proposed), proposer(kind)
    assert drafting.lockstep_ns([shape]) == drafting.lockstep_ns([BatchShape(), shape]) == drafting.draft_ns(shape)


def test_a_target_without_bound_or_ranks_says_so() -> None:
    class Bare:
        window = 0

    cost = SpeculativeCost(Bare(), TimedProposer(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no physical bound"):
        cost.bound_ns(BatchShape())
    with pytest.raises(TypeError, match="ranks that step together"):
        cost.lockstep_cost([BatchShape()])


# --- passes of a model ----------------------------------------------------------------------------------------------


def test_a_draft_model_computes_the_whole_step_and_then_decodes() -> None:
    law = build_roofline(DRAFT, PLACE.gpu, tensor_parallel=4, max_num_batched_tokens=576, max_num_seqs=64)
    drafting = draft_model_proposer(DRAFT, (1,) * 4, PLACE, "auto", NONE)
    shape = shape_of([500, 500], [], 4, 4)
    # The first pass has the four drafts, the token before them and the one after, and logits of one.
    first = law.breakdown(BatchShape(2, 1_000, 0, (), 0, 2, 10))
    rows = law.breakdown(BatchShape(2, 1_000, 0, (), 0, 2))
    of_rows = ("lm_head", "gather_logits", "sampling")
    time = sum(rows[name] if name in of_rows else part for name, part in first.items())
    # Then three decodes; the second of them has 500 + 2 keys, and they are linear in their keys.
    later = law.step_cost(BatchShape(2, 1_004, 0, (), 0, 2)).device_ns
    assert drafting.draft_ns(shape) == time + 3 * later


def test_a_head_has_no_token_more_and_ends_with_its_own_vocabulary() -> None:
    head = eagle3_head(TARGET)
    drafting = head_proposer(head, (1,), PLACE, "auto", NONE)
    law = build_roofline(head.first, PLACE.gpu, tensor_parallel=4, max_num_batched_tokens=576, max_num_seqs=64)
    one = law.step_cost(BatchShape(8, 8_000, 0, (), 0, 8)).device_ns
    assert drafting.draft_ns(shape_of([1_000] * 8, [], 0, 1)) == one
    widths = {matrix: law.breakdown(BatchShape(8, 8_000, 0, (), 0, 8))[matrix] for matrix in ("fuse_inputs", "lm_head")}
    whole = target().breakdown(BatchShape(8, 8_000, 0, (), 0, 8))["lm_head"]
    assert 0.15 < widths["lm_head"] / whole < 0.6
    assert widths["fuse_inputs"] > 0


def test_levels_of_a_tree_are_passes_as_wide_as_the_level_before() -> None:
    head = eagle_head(TARGET)
    law = build_roofline(head.later, PLACE.gpu, tensor_parallel=4, max_num_batched_tokens=576, max_num_seqs=64)
    shape = shape_of([400] * 3, [], sum(TREE), len(TREE))

    def level(width: int, beyond: float) -> int:
        return law.step_cost(BatchShape(3, 1_200 + int(3 * beyond), 0, (), 0, 3, 3 * (width - 1))).device_ns

    tree = head_proposer(head, TREE, PLACE, "auto", NONE).draft_ns(shape)
    first = head_proposer(head, TREE[:1], PLACE, "auto", NONE).draft_ns(shape._replace(proposed=1))
    # Three passes over four drafts, on a mean of (4 + 8 + 12) / 3 keys more; the last level is not computed.
    assert tree == first + 3 * level(4, 8)


def test_prompts_are_computed_whether_or_not_anything_is_proposed() -> None:
    chunk = BatchShape(chunks=((300, 100),))
    for kind in ("eagle", "draft model"):
        drafting = proposer(kind)
        assert 0 < drafting.draft_ns(chunk) <= drafting.draft_ns(chunk._replace(sampled=1, proposed=1))
        decodes = shape_of([50] * 9, [(300, 100)], 0, 0)
        assert drafting.draft_ns(decodes) == drafting.draft_ns(chunk)
    for kind in ("medusa", "timed", "lookup"):
        assert proposer(kind).draft_ns(chunk) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_proposed_where_no_sequence_samples(kind: str) -> None:
    goes_on = BatchShape(chunks=((300, 100),))
    cost = SpeculativeCost(target(), proposer(kind), step_ns=10**6)
    assert cost.step_cost(goes_on._replace(proposed=4)) == cost.step_cost(goes_on)
    assert cost.lockstep_cost([goes_on._replace(proposed=4)]) == cost.lockstep_cost([goes_on])


def test_more_levels_than_the_drafter_has_are_refused() -> None:
    with pytest.raises(ValueError, match="8 levels of drafts from a drafter of 7"):
        proposer("eagle").draft_ns(shape_of([5], [], 0, 8))


def test_launches_count_until_kernels_take_longer() -> None:
    slow = head_proposer(eagle_head(TARGET), (1,) * 3, PLACE, "auto", Launch(5_000_000, 10_000))
    assert slow.draft_ns(shape_of([100] * 7, [], 3, 3)) == 3 * 5_070_000
    quick = head_proposer(eagle_head(TARGET), (1,) * 3, PLACE, "auto", Launch(1, 1))
    assert quick.draft_ns(shape_of([100] * 7, [], 3, 3)) == proposer("eagle").draft_ns(shape_of([100] * 7, [], 3, 3))


def test_experts_of_an_mtp_layer_are_computed_by_all_ranks_together() -> None:
    place = dataclasses.replace(PLACE, placement=PLACE.placement._replace(data_parallel=2))
    drafting = head_proposer(mtp_head(DEEPSEEK), (1, 1), place, "auto", NONE)
    cost = SpeculativeCost(target(2), drafting, step_ns=100)
    shape, idle = shape_of([900] * 5, [], 2, 2), BatchShape()
    assert cost.lockstep_cost([shape, shape]) == cost.step_cost(shape)
    alone = cost.lockstep_cost([shape, idle])
    assert alone.draft_ns <= cost.step_cost(shape).draft_ns
    assert cost.lockstep_cost([idle, idle]).device_ns == 0
    prompts = BatchShape(chunks=((64, 0),))
    assert cost.lockstep_cost([prompts, prompts]).draft_ns == drafting.draft_ns(prompts)


@pytest.mark.parametrize("kind", ["medusa", "timed", "lookup"])
def test_without_layers_of_their_own_ranks_wait_for_the_slowest(kind: str) -> None:
    few, many = shape_of([9] * 2, [], 1, 1), shape_of([9] * 40, [], 1, 4)
    assert proposer(kind).lockstep_ns([few, many]) == proposer(kind).draft_ns(many)
    assert proposer(kind).lockstep_ns([]) == 0


# --- the others -----------------------------------------------------------------------------------------------------


def test_medusa_takes_one_pass_and_all_heads() -> None:
    shape = shape_of([400] * 6, [], 4, 4)
    two, four = (MedusaProposer(TARGET, heads, PLACE).draft_ns(shape) for heads in (2, 4))
    assert 0 <= 2 * two - four <= 1  # rounded up once
    assert proposer("medusa").draft_ns(shape) == proposer("medusa").draft_ns(shape._replace(proposed=1))
    head = TARGET.hidden * TARGET.hidden + TARGET.hidden * TARGET.vocab // 4
    assert proposer("medusa").bound_ns(shape) == int(4 * head * 2 / PLACE.gpu.hbm_bandwidth * 1e9)
    assert TimedProposer(1_000, one_pass=True).draft_ns(shape) == 1_000


def test_a_lookup_takes_the_cpu_for_each_sequence_that_sampled() -> None:
    assert LookupProposer(10_000).draft_ns(shape_of([9] * 3, [(5, 0)], 0, 2)) == 40_000
    assert LookupProposer(10_000).draft_ns(shape_of([9] * 3, [(5, 0)], 0, 0)) == 0


def test_terms_of_the_host() -> None:
    passes = {"draft_pass": 1e-3, "draft_layer": 1e-4, "draft_sequence": 1e-6, "draft_eagle3_pass": 3e-4}
    host = HostModel(draft_step=2e-4, draft_eagle3_step=4e-4, **passes)
    assert launch_of(host, 1) == Launch(1_000_000, 1_000)
    assert launch_of(host, 4, eagle3=True) == Launch(1_600_000, 1_000)
    assert (draft_step_ns(host), draft_step_ns(host, eagle3=True)) == (200_000, 600_000)
    assert launch_of(NO_HOST, 8) == Launch(0, 0)
    assert Launch(1_000, 10).ns(7) == 1_070


def test_an_engine_that_prepares_sequences_one_by_one_loses_where_they_are_many() -> None:
    host = load_host("vllm-v0", "h100-sxm")
    place = drafter_place(PLACE.gpu, host=host)
    law = build_roofline(DRAFT, PLACE.gpu, host=host)
    cost = SpeculativeCost(law, head_proposer(eagle_head(DRAFT), (1,) * 4, place, "auto", launch_of(host, 1)))
    ratios = {}
    for count in (1, 64):
        plain, drafted = shape_of([300] * count, [], 0, 0), shape_of([304] * count, [], 4, 4)
        times = [sum(cost.step_cost(shape)[:2]) for shape in (plain, drafted)]
        ratios[count] = 2 * times[0] / times[1]  # two tokens a step
    assert ratios[1] > 1
    assert ratios[64] == pytest.approx(0.34, abs=0.05)  # measured, of 100 sequences that end one after the other


def test_what_a_proposer_was_not_measured_for_is_named() -> None:
    assert isinstance(proposer("eagle"), ModelProposer)
    texts = draft_model_proposer(DRAFT, (1,), PLACE, "int8", NONE).outside
    assert texts
    assert all(text.startswith("the drafter's ") for text in texts)
    assert TimedProposer(1).outside == ()
