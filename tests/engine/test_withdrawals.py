"""Withdrawals of requests at random times, in every design: both batches give equal results, and no block is lost.

Requests are withdrawn at the front end, waiting, prefilling, decoding, with their last token in flight, parked for a
load from CPU memory, waiting to join a decode batch, and in transfer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from cost_models import FrontEnd
from simulator.common.shipped import file_finder
from simulator.deployment.acceptance import with_acceptance
from simulator.deployment.resolve import resolve
from simulator.engine.simulation import Controls, simulate
from simulator.results.columns import ReplicaState, Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.results.segments import token_time_digest
from simulator.scenario import Scenario, parse_scenario
from simulator.workload.requests import RequestTable
from tests.engine.test_offload import offloading, pcie
from tests.engine.test_prefix_caching import shared_table
from tests.helpers import PLACEHOLDER, plain_scheduler, request_table

MS = 10**6
LAW = {"kind": "linear", "base": "5ms", "per_prefill_token": "100us", "per_decode_token": "20us"}
#: A token's KV of Llama-3.1-8B is 131,072 bytes: 20 tokens of it in 1 ms.
LINKS = {"network": {"bandwidth": "2621440000B/s"}, "pcie": {"bandwidth": "2621440000B/s"}, "placement": "apart"}
EAGLE = {
    "method": "eagle",
    "num_speculative_tokens": 3,
    "pass_time": "1ms",
    "acceptance": {"cumulative": [0.7, 0.5, 0.3]},
}
APART = {"handover": {"mode": "pull"}}


def pools(
    *roles: str, scheduler: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **keys: Any
) -> Any:
    """Return pools of these roles with the same settings."""
    settings = plain_scheduler({"max_num_batched_tokens": 256, "max_num_seqs": 24, **(scheduler or {})})
    pool = {"gpu": "h100-sxm", "cost_model": LAW, "scheduler": settings, "memory": {"kv_blocks": 60, **(memory or {})}}
    return {"pools": {role: pool | {"role": role} | keys for role in roles}}


CACHING, AHEAD = {"enable_prefix_caching": True}, {"async_scheduling": True}
WHOLE = {"max_num_batched_tokens": 600, "max_model_len": 600}
OFFLOAD = {"kv_blocks": 40, "offload": {"capacity": "200GiB", "policy": "reload"}}


def layerwise(**keys: Any) -> dict[str, Any]:
    return {"handover": {"mode": "push", "overlap": "layerwise", "first_token": "decode", **keys}}


#: The deployment of each design; the model is Llama-3.1-8B unless it says otherwise.
DESIGNS: dict[str, dict[str, Any]] = {
    "unified": pools("both"),
    "unified, ahead": pools("both", scheduler=AHEAD),
    "unified, caching": pools("both", scheduler=CACHING),
    "unified, caching, ahead": pools("both", scheduler=CACHING | AHEAD, replicas=2),
    "unified, contiguous": pools("both", memory={"allocation": "contiguous_exact", "kv_blocks": 90}),
    "sarathi": pools("both", scheduler={"policy": "sarathi"}),
    "sarathi in turns": pools("both", scheduler={"policy": "sarathi", "batching": "alternating"}),
    "prefill first": pools("both", scheduler={"policy": "prefill_first", **WHOLE}),
    "static": pools("both", scheduler={"policy": "static", **WHOLE}, memory={"kv_blocks": 300}),
    "sglang": pools("both", scheduler={"policy": "sglang", "enable_prefix_caching": True}),
    "sglang, mixed": pools("both", scheduler={"policy": "sglang", "enable_mixed_chunk": True}),
    "tensorrt": pools("both", scheduler={"policy": "tensorrt_llm"}),
    "cpu memory": pools("both", scheduler=CACHING, memory=OFFLOAD),
    "cpu memory, ahead": pools("both", scheduler=CACHING | AHEAD, memory=OFFLOAD),
    "pipeline": pools("both", pipeline_parallel=2, memory={"kv_blocks": 140}),
    "ranks in lockstep": pools("both", data_parallel=2) | {"model": "deepseek-r1"},
    "ranks in lockstep, ahead": pools("both", data_parallel=2, scheduler=AHEAD | CACHING) | {"model": "deepseek-r1"},
    "speculation": pools("both", speculation=EAGLE),
    "speculation, ahead": pools("both", speculation=EAGLE, scheduler=AHEAD),
    "speculation, caching, ahead": pools("both", speculation=EAGLE, scheduler=AHEAD | CACHING),
    "apart, pull": pools("prefill", "decode") | APART,
    "apart, pull, caching": pools("prefill", "decode", scheduler=CACHING) | APART,
    "apart, pull, ahead": pools("prefill", "decode", scheduler=AHEAD) | {"handover": {"max_concurrent": 1}},
    "apart, push": pools("prefill", "decode") | {"handover": {"mode": "push", "first_token": "prefill"}},
    "apart, failing": pools("prefill", "decode")
    | {"handover": {"failure_rate": 0.4, "max_retries": 1, "setup": "3ms"}},
    "apart, first token at the transfer": pools("prefill", "decode") | {"handover": {"first_token": "transfer"}},
    "apart, layer by layer": pools("prefill", "decode") | layerwise(),
    "apart, layer by layer, ahead": pools("prefill", "decode", scheduler=AHEAD) | layerwise(layers_per_group=8),
    "apart, layer by layer, caching": pools("prefill", "decode", scheduler=CACHING) | layerwise(setup="8ms"),
}


def design(name: str, engine: str) -> Scenario:
    deployment = dict(DESIGNS[name])
    document = {"name": "t", "model": deployment.pop("model", "llama-3.1-8b"), "workload": PLACEHOLDER, "links": LINKS}
    return parse_scenario(json.dumps(document | {"deployment": deployment, "run": {"checks": True, "engine": engine}}))


@dataclass
class Outcome:
    record: RunRecord
    withdrawn: int


def serve(asked: Scenario, table: RequestTable, times_ns: dict[int, int], delay_ns: int) -> Outcome:
    """Run the table, with the withdrawals of requests at these times; the front end takes `delay_ns` a request.

    In the end every engine core is empty, and all of its blocks are free.
    """
    resolved = with_acceptance(resolve(asked), asked, table, file_finder(None))
    services = [service._replace(front_end=FrontEnd(request_ns=delay_ns)) for service in resolved.services]
    count, seen = 0, []

    def control(controls: Controls) -> None:
        def withdraw(index: int) -> Callable[[object], None]:
            def now(_: object) -> None:
                nonlocal count
                count += controls.lifecycle.withdraw(index)

            return now

        seen.append(controls)
        for index, time_ns in times_ns.items():
            controls.clock.at(time_ns, withdraw(index))

    record = simulate(asked, table, services, control=control)
    check(record)
    for core in seen[0].cluster.cores:
        pool, batch = core.batch.pool, core.batch
        batch.check()
        assert pool.free == pool.blocks
        assert not batch.unfinished + len(batch.outside) + len(batch.parked)
        assert core.known_tokens == core.waiting == 0
    assert all(not replica.unfinished for replica in seen[0].cluster.replicas)
    return Outcome(record, count)


def random_case(seed: int) -> tuple[RequestTable, dict[int, int], int]:
    """A table of requests, some of which share prefixes; when some of them are withdrawn; and the front end's delay."""
    draw = np.random.default_rng(seed)
    table = shared_table(seed, 60, float(10 ** draw.uniform(5.5, 7.5)), 200, 60, int(draw.integers(0, 20)))
    lives = draw.exponential(float(10 ** draw.uniform(7, 9)), len(table)).astype(np.int64) + 1
    chosen = np.flatnonzero(draw.random(len(table)) < 0.6)
    return table, {int(i): int(table.arrival_ns[i] + lives[i]) for i in chosen}, int(draw.choice([0, 4 * MS]))


@pytest.mark.parametrize("name", DESIGNS)
def test_lazy_equals_explicit(name: str) -> None:
    withdrawn, met = 0, set[Status]()
    for seed in range(20):
        table, times_ns, delay_ns = random_case(seed)
        explicit, lazy = (serve(design(name, engine), table, times_ns, delay_ns) for engine in ("explicit", "auto"))
        assert token_time_digest(lazy.record) == token_time_digest(explicit.record), seed
        for columns in ("requests", "preemptions", "steps", "segments", "transfers", "offload", "drafts"):
            ours, theirs = getattr(lazy.record, columns), getattr(explicit.record, columns)
            for field in fields(ours):
                assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name)), (seed, columns, field)
        status = lazy.record.requests.status
        assert np.count_nonzero(status == Status.CANCELLED) <= lazy.withdrawn == explicit.withdrawn
        withdrawn += int(np.count_nonzero(status == Status.CANCELLED))
        met |= {Status(each) for each in np.unique(status).tolist()}
    assert met == {Status.COMPLETED, Status.CANCELLED}
    assert withdrawn > 100


def test_a_withdrawal_that_comes_too_late_or_too_early_does_nothing() -> None:
    table = request_table([10 * MS, 20 * MS], [10, 10], [2, 2])
    before = serve(design("unified", "auto"), table, {}, 0).record
    after = serve(design("unified", "auto"), table, {0: 5 * MS, 1: 10**10}, 0)
    assert after.withdrawn == 0
    assert token_time_digest(after.record) == token_time_digest(before)


def test_a_request_is_withdrawn_when_the_next_step_is_formed() -> None:
    """Steps take 6.02 ms, then 5.02: at 8 ms the second token is in flight, and delivered at 11.04."""
    table = request_table([0], [10], [50])
    record = serve(design("unified", "auto"), table, {0: 8 * MS}, 0).record
    assert record.requests.emitted_tokens.tolist() == [2]
    assert record.requests.status.tolist() == [Status.CANCELLED]
    assert len(record.steps.end_ns) == 2


def test_what_is_withdrawn_leaves_its_place_to_the_next() -> None:
    """A decode place is taken by the first request until it is withdrawn."""
    deployment = pools("both", scheduler={"max_num_seqs": 1})
    asked = replace(
        design("unified", "auto"),
        deployment=parse_scenario(
            json.dumps({"name": "t", "model": "llama-3.1-8b", "workload": PLACEHOLDER, "deployment": deployment})
        ).deployment,
    )
    record = serve(asked, request_table([0, MS], [10, 10], [500, 5]), {0: 100 * MS}, 0).record
    assert record.requests.scheduled_ns[1] >= 100 * MS
    assert record.requests.status.tolist() == [Status.CANCELLED, Status.COMPLETED]


def test_a_draining_replica_gets_no_more_requests_and_goes_down_when_it_is_empty() -> None:
    asked = parse_scenario(
        json.dumps(
            {
                "name": "t",
                "model": "llama-3.1-8b",
                "workload": PLACEHOLDER,
                "deployment": pools("both", replicas=2),
            }
        )
    )
    table = request_table([i * 10 * MS for i in range(40)], [10] * 40, [20] * 40)

    def control(controls: Controls) -> None:
        first = controls.cluster.replicas[0]

        def drain(_: object) -> None:
            first.change(ReplicaState.DRAINING, controls.clock)
            with pytest.raises(ValueError, match="unfinished requests"):
                first.change(ReplicaState.DOWN, controls.clock)

        controls.clock.at(105 * MS, drain)
        controls.clock.at(350 * MS, lambda _: first.change(ReplicaState.DOWN, controls.clock))

    record = simulate(asked, table, resolve(asked).services, control=control)
    check(record)
    assert set(record.requests.status.tolist()) == {Status.COMPLETED}
    assert set(record.requests.replica[11:].tolist()) == {1}
    assert record.replica_states.state.tolist() == [2, 3, 0, 2]
    (pool,) = record.pools
    assert record.replica_ns(pool) == 350 * MS + record.end_ns - record.start_ns


def test_a_request_that_finds_no_replica_open_is_refused() -> None:
    asked = design("unified", "auto")

    def control(controls: Controls) -> None:
        controls.clock.at(1, lambda _: controls.cluster.replicas[0].change(ReplicaState.DOWN, controls.clock))

    record = simulate(asked, request_table([5], [10], [5]), resolve(asked).services, control=control)
    assert (record.requests.status.tolist(), record.requests.refusal.tolist()) == ([Status.REJECTED], [3])


def test_a_prompt_whose_last_step_is_under_way_is_not_handed_over() -> None:
    """The step of the request ends at 5 + 4 ms; it is withdrawn at 7 ms."""
    record = serve(design("apart, pull", "auto"), request_table([0], [40], [5]), {0: 7 * MS}, 0).record
    assert record.requests.status.tolist() == [Status.CANCELLED]
    assert (record.transfers.reserved_ns.tolist(), record.transfers.bytes.tolist()) == ([-1], [0])


@pytest.mark.parametrize(("at_ms", "begun"), [(12, [True, False]), (14, [True, False]), (16, [True, True])])
def test_a_transfer_that_waits_for_its_turn_never_begins(at_ms: int, begun: list[bool]) -> None:
    """Both prompts are computed at 5 + 8 ms, and each transfer takes 2 ms, one after the other."""
    asked = design("apart, pull, ahead", "auto")
    record = serve(asked, request_table([0, 0], [40, 40], [5, 5]), {1: at_ms * MS}, 0).record
    sent = [start_ns >= 0 for start_ns in record.transfers.start_ns.tolist()]
    assert record.requests.status.tolist()[1] == Status.CANCELLED
    assert sent == begun


#: A text of 4 blocks, one of 12 that pushes it to CPU memory, and then twice the first: the last request waits for the
#: load of the one before.
LOADING = request_table(
    [0, 1000 * MS, 2000 * MS, 2001 * MS],
    [64, 192, 64, 64],
    [2] * 4,
    prefix_id=[0, 1, 0, 0],
    prefix_tokens=[64, 192, 64, 64],
)


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
@pytest.mark.parametrize("withdrawn", [[2], [3], [2, 3]], ids=str)
def test_sequences_parked_for_a_load_are_withdrawn(engine: str, withdrawn: list[int]) -> None:
    asked = offloading({"policy": "reload"}, 13, pcie(100), engine)
    outcome = serve(asked, LOADING, dict.fromkeys(withdrawn, 2100 * MS), 0)
    status = outcome.record.requests.status.tolist()
    assert status == [Status.CANCELLED if i in withdrawn else Status.COMPLETED for i in range(4)]
    assert outcome.record.offload.loaded_ns[0] > 2100 * MS  # the load continues
    if withdrawn == [2]:  # the other one waited for the load
        assert outcome.record.requests.scheduled_ns[3] >= outcome.record.offload.loaded_ns[0]
