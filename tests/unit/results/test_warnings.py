"""When a result needs a warning, and when it does not."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from simulator.results.columns import Status, StepColumns
from simulator.results.metrics import summarise
from simulator.results.record import RunRecord
from simulator.results.saturation import estimated_load
from simulator.results.stability import backlog_grows, overload, unstable
from tests.unit.results.synthetic import MS, SECOND, queue_record, refused, replay, scenario

ONE_AT_A_TIME = "deployment.pools.main.scheduler.max_num_seqs=1"
CLOSED = "workload.arrivals={process: closed_loop, concurrency: 4}"
COLUMNS = [field.name for field in fields(StepColumns) if field.name != "offsets"]


def codes(record: RunRecord, *overrides: str) -> list[str]:
    return [warning["code"] for warning in summarise(record, scenario(*overrides))["warnings"]]


def texts(record: RunRecord, code: str, *overrides: str) -> list[str]:
    warnings = summarise(record, scenario(*overrides))["warnings"]
    return [warning["text"] for warning in warnings if warning["code"] == code]


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng([40, *seed])


def fired(requests: int, rho: float, servers: int = 1, cv: float = 1.0, runs: int = 40) -> int:
    """Return the number of `runs` runs with the warning of an unstable queue."""
    return sum(unstable(queue_record(rng(run), requests, rho, servers, cv)) for run in range(runs))


# --- load above capacity


@pytest.mark.parametrize("requests", [300, 1_000, 5_000])
@pytest.mark.parametrize("servers", [1, 64])
def test_a_queue_at_90_percent_is_stable(requests: int, servers: int) -> None:
    assert fired(requests, 0.9, servers) <= 2


@pytest.mark.parametrize(
    ("requests", "rho", "servers", "cv", "least"),
    [
        (500, 1.1, 1, 0.0, 36),
        (1_000, 1.05, 1, 0.0, 32),
        (1_000, 1.1, 1, 1.0, 32),
        (1_000, 1.1, 32, 0.5, 32),
        (3_000, 1.05, 32, 0.5, 32),
        (300, 1.3, 1, 1.0, 34),
        (300, 3.0, 32, 1.0, 40),
    ],
)
def test_load_above_capacity_is_found(requests: int, rho: float, servers: int, cv: float, least: int) -> None:
    """Of 40 runs. A few percent above capacity, chance alone may keep a short line from growing."""
    assert fired(requests, rho, servers, cv) >= least


def test_the_overload_is_described() -> None:
    load = overload(queue_record(rng(), 4_000, 1.25, cv=0.0))
    assert load is not None
    assert load.arrivals_per_s == pytest.approx(1.25, rel=0.05)
    assert load.starts_per_s == pytest.approx(1.0, rel=0.01)
    assert load.waiting == pytest.approx(4_000 * 0.2, rel=0.15)


def test_an_unstable_queue_is_the_first_warning_and_hides_those_that_it_makes_moot() -> None:
    found = codes(queue_record(rng(), 1_000, 1.5))
    assert found[0] == "unstable_queue"
    assert "near_saturation" not in found
    assert "few_samples" not in found


def test_an_offline_batch_is_not_unstable() -> None:
    record = replay(np.zeros(400, np.int64), np.full(400, 50), np.full(400, 20))
    assert not unstable(record)
    assert not {"near_saturation", "few_samples", "zero_queue"} & set(codes(record))


def closed_loop(clients: int, slots: int, requests: int) -> RunRecord:
    """Return the record of a closed loop with exponential service times."""
    service = rng().exponential(1, requests)
    free, ready = [0.0] * slots, [0.0] * clients
    sent, start = np.empty(requests), np.empty(requests)
    for index in range(requests):
        sent[index] = ready.pop(ready.index(min(ready)))
        slot = free.index(min(free))
        start[index] = max(sent[index], free[slot])
        free[slot] = start[index] + service[index]
        ready.append(free[slot])
    record = queue_record(rng(), requests, 0.5)
    sent_ns, start_ns = (np.rint(times * SECOND).astype(np.int64) for times in (sent, start))
    requests_ = replace(record.requests, client_ns=sent_ns, arrival_ns=sent_ns, scheduled_ns=start_ns)
    return replace(record, requests=requests_)


@pytest.mark.parametrize(("clients", "slots"), [(40, 8), (200, 100), (8, 8)])
def test_a_closed_loop_is_not_unstable(clients: int, slots: int) -> None:
    assert not unstable(closed_loop(clients, slots, 1_500))


def test_a_backlog_that_drains_is_not_unstable() -> None:
    """A burst at twice the capacity, then a long time at half of it."""
    burst = np.cumsum(rng(1).exponential(0.5, 300))
    arrival = np.concatenate([burst, burst[-1] + np.cumsum(rng(2).exponential(2.0, 900))])
    start = np.empty(1_200)
    free = 0.0
    for index, at in enumerate(arrival):
        start[index] = max(at, free)
        free = start[index] + 1
    record = queue_record(rng(), 1_200, 0.5)
    times = {"client_ns": arrival, "arrival_ns": arrival, "scheduled_ns": start}
    columns = {name: np.rint(values * SECOND).astype(np.int64) for name, values in times.items()}
    assert not unstable(replace(record, requests=replace(record.requests, **columns)))


def test_a_line_at_the_clients_gate_is_not_the_services() -> None:
    """At most 4 at a time are let in, so that none ever waits at the service."""
    record = queue_record(rng(), 1_000, 1.3, servers=4, cv=0.5)
    gated = replace(record, requests=replace(record.requests, arrival_ns=record.requests.scheduled_ns))
    assert not unstable(gated)
    found = texts(gated, "client_limit_reached", "workload.max_concurrency=4")
    assert len(found) == 1
    assert "clients wanted to send 1.3" in found[0]
    assert found[0].endswith("the others are those at concurrency 4")
    calm = queue_record(rng(), 1_000, 0.5, servers=4)
    assert not texts(calm, "client_limit_reached", "workload.max_concurrency=4")


def test_requests_cut_off_by_a_horizon_count() -> None:
    record = queue_record(rng(), 1_000, 4.0)
    cut_ns = int(record.requests.arrival_ns[-1])
    done, started = record.requests.finish_ns <= cut_ns, record.requests.scheduled_ns <= cut_ns
    requests = replace(
        record.requests,
        scheduled_ns=np.where(started, record.requests.scheduled_ns, -1),
        status=np.where(done, Status.COMPLETED, Status.IN_FLIGHT),
    )
    assert unstable(replace(record, requests=requests, end_ns=cut_ns))
    never = replace(requests, scheduled_ns=np.full(1_000, -1), status=np.full(1_000, Status.IN_FLIGHT))
    load = overload(replace(record, requests=never, end_ns=cut_ns))
    assert load is not None
    assert (load.starts_per_s, load.waiting) == (0.0, 1_000)


@pytest.mark.parametrize("requests", [99, 50])
def test_a_few_requests_far_above_capacity_are_overload(requests: int) -> None:
    """Too few requests to distinguish a growing queue from chance, but their load is three times the capacity."""
    record = queue_record(rng(2), requests, 3.0)
    found = texts(record, "unstable_queue", ONE_AT_A_TIME)
    assert len(found) == 1
    assert f"{requests} requests arrived at" in found[0]
    assert "%" not in found[0]


def test_overload_that_a_horizon_cuts_off_before_anything_waits_is_overload() -> None:
    """The line shows in a batch that grows: 32 slots take up all that come in a second."""
    record = decoding(200, requests=1_500)
    cut_ns = record.start_ns + SECOND // 4
    came, done = record.requests.arrival_ns <= cut_ns, record.requests.finish_ns <= cut_ns
    emitted = np.where(came, np.minimum(record.requests.emitted_tokens, 5), 0)
    status = np.where(done, Status.COMPLETED, np.where(came, Status.IN_FLIGHT, Status.NOT_ARRIVED))
    requests = replace(
        record.requests,
        arrival_ns=np.where(came, record.requests.arrival_ns, -1),
        client_ns=np.where(came, record.requests.client_ns, -1),
        finish_ns=np.where(done, record.requests.finish_ns, -1),
        emitted_tokens=np.where(done, record.requests.output_tokens, emitted),
        status=status,
    )
    rows = int(np.searchsorted(record.steps.end_ns, cut_ns, "right"))
    columns = {name: getattr(record.steps, name)[:rows] for name in COLUMNS}
    steps = replace(record.steps, offsets=np.array([0, rows]), **columns)
    cut = replace(record, requests=requests, steps=steps, end_ns=cut_ns)
    load = estimated_load(cut, 32, 8192)
    assert load is not None
    assert load.exceeds
    assert load.share == pytest.approx(200 / CAPACITY, rel=0.35)
    assert backlog_grows(cut)


@pytest.mark.parametrize("requests", [30, 99, 300, 3_000])
def test_a_stable_queue_is_not_called_overload_by_its_load(requests: int) -> None:
    found = [codes(queue_record(rng(run), requests, 0.9), ONE_AT_A_TIME) for run in range(20)]
    assert sum("unstable_queue" in names for names in found) <= 1


def test_shares_above_capacity_are_not_printed() -> None:
    for record in (queue_record(rng(), 1_000, 1.0), decoding(56), queue_record(rng(), 60, 2.0, cv=0.0)):
        for warning in summarise(record, scenario(ONE_AT_A_TIME))["warnings"]:
            shares = [int(share) for share in re.findall(r"(\d+)% of capacity", warning["text"])]
            assert all(share <= 100 for share in shares)


# --- near saturation


def decoding(rate: float, requests: int = 1_500, slots: int = 32) -> RunRecord:
    """Return the record of Poisson arrivals, 50 tokens each.

    A step takes 8 ms + .1 ms a decode: the capacity is 32 / .0112 / 50 = 57 a second.
    """
    arrival = np.rint(np.cumsum(rng(3).exponential(1 / rate, requests)) * SECOND).astype(np.int64)
    prompts = rng(4).integers(10, 40, requests)
    return replay(arrival, prompts, np.full(requests, 50), slots=slots, step_ns=8 * MS, token_ns=100_000)


#: A request costs 25 prompt tokens and 49 decodes at .1 ms, and its 50 shares in steps: 50 x 8 / 32 ms.
CAPACITY = 1 / ((25 + 49) * 0.1e-3 + 50 * 8e-3 / 32)


@pytest.mark.parametrize("rate", [10, 25, 40])
def test_the_load_is_estimated_from_light_loads_on(rate: int) -> None:
    load = estimated_load(decoding(rate), 32, 8192)
    assert load is not None
    assert load.share == pytest.approx(rate / CAPACITY, rel=0.06)
    assert load.rate_per_s == pytest.approx(rate, rel=0.06)


def test_the_token_budget_limits_the_largest_batch() -> None:
    """With two tokens a step, the 74 of a request take at least 37 steps of 8 ms."""
    load = estimated_load(decoding(10), 32, 2)
    assert load is not None
    assert load.share == pytest.approx(10 * ((25 + 49) * 0.1e-3 + 37 * 8e-3), rel=0.06)


def test_the_load_is_in_the_summary_of_a_load_test() -> None:
    def engine(record: RunRecord, *overrides: str) -> dict[str, float]:
        return dict(
            summarise(record, scenario("deployment.pools.main.scheduler.max_num_seqs=32", *overrides))["engine"]
        )

    assert engine(decoding(25))["estimated_load"] == pytest.approx(25 / CAPACITY, rel=0.06)
    assert "estimated_load" not in engine(decoding(25, requests=99))
    assert "estimated_load" not in engine(decoding(25), "workload.max_concurrency=32")
    assert "estimated_load" not in engine(decoding(25), CLOSED)


def test_a_load_close_to_capacity_is_near_saturation() -> None:
    assert "near_saturation" not in codes(decoding(30), "deployment.pools.main.scheduler.max_num_seqs=32")
    assert "near_saturation" in codes(decoding(47), "deployment.pools.main.scheduler.max_num_seqs=32")


def test_waiting_memory_and_preemptions_are_near_saturation() -> None:
    arrival = np.arange(200) * 50 * MS
    calm = replay(arrival, np.full(200, 50), np.full(200, 4))
    assert "near_saturation" not in codes(calm)
    preempted = replay(arrival, np.full(200, 50), np.full(200, 12), preempt_at=frozenset(range(3, 900, 5)))
    assert "near_saturation" in codes(preempted)
    assert "near_saturation" in codes(replay(arrival, np.full(200, 50), np.full(200, 4), kv_blocks=4))
    assert "near_saturation" in codes(queue_record(rng(), 500, 0.8))


def test_a_try_has_no_share_of_capacity() -> None:
    few = queue_record(rng(), 99, 0.95)
    assert not any("of capacity" in text for text in texts(few, "near_saturation", ONE_AT_A_TIME))


def test_what_to_vary_depends_on_the_loop() -> None:
    record = queue_record(rng(), 500, 0.8)
    assert texts(record, "near_saturation")[0].endswith("vary the rate to see how far they change")
    assert texts(record, "near_saturation", CLOSED)[0].endswith("vary the concurrency to see how far they change")


# --- samples, workload


def test_few_samples() -> None:
    def found(requests: int) -> list[str]:
        return texts(queue_record(rng(), requests, 0.05), "few_samples")

    assert found(58) == ["latencies are of 58 requests; p95 needs 59 and p99 299, and more if they are correlated"]
    assert found(59) == ["latencies are of 59 requests; p99 needs 299, and more if they are correlated"]
    assert len(found(298)) == 1
    assert found(5_000) == []


def test_a_run_that_refused_everything_says_no_more_than_that() -> None:
    record = replay(np.arange(20) * MS, [50] * 20, [2] * 20)
    requests = replace(record.requests, status=np.full(20, Status.REJECTED), scheduled_ns=np.full(20, -1))
    nothing = refused()
    assert codes(replace(nothing, requests=requests)) == []
    assert codes(nothing) == []


def test_a_warm_up_that_leaves_nothing_is_named() -> None:
    record = replay(np.arange(20) * MS, rng().integers(20, 900, 20), [2] * 20)
    found = codes(record, "run.warmup=10s")
    assert "warmup_excludes_all" in found
    assert "few_samples" not in found
    assert "warmup_excludes_all" not in codes(record, "run.warmup=1ms")


def test_many_samples_that_depend_are_few() -> None:
    assert "few_samples" in codes(queue_record(rng(), 3_000, 0.9))
    assert "few_samples" not in codes(queue_record(rng(), 3_000, 0.1))


def test_no_steady_state_for_mser5_is_said() -> None:
    growing = queue_record(rng(), 1_000, 2.0)
    assert "steady_state_not_reached" in codes(growing, "run.warmup=mser5")
    assert "steady_state_not_reached" not in codes(queue_record(rng(), 1_000, 0.5), "run.warmup=mser5")


def test_odd_prompts() -> None:
    arrival = np.arange(50) * 100 * MS
    mixed = replay(arrival, rng().integers(20, 900, 50), [2] * 50)
    alike = replay(arrival, rng().integers(500, 520, 50), [2] * 50)
    short = replay(arrival, rng().integers(1, 14, 50), [2] * 50)
    odd = {"homogeneous_prompts", "short_prompts"}
    assert not odd & set(codes(mixed))
    assert odd & set(codes(alike)) == {"homogeneous_prompts"}
    assert odd & set(codes(short)) == {"short_prompts"}


def test_zero_queue() -> None:
    idle = replay(np.arange(150) * 100 * MS, rng().integers(20, 900, 150), [2] * 150)
    assert "near the minimum" in texts(idle, "zero_queue")[0]
    assert "zero_queue" not in codes(idle, "workload.max_concurrency=4")
    assert "zero_queue" not in codes(idle, CLOSED)
    assert "zero_queue" not in codes(queue_record(rng(), 500, 0.8))
    few = replay(np.arange(20) * 100 * MS, rng().integers(20, 900, 20), [2] * 20)
    assert "zero_queue" not in codes(few)


def test_nothing_waits_and_yet_the_latencies_are_no_floor() -> None:
    record = decoding(38, slots=300)
    slots = "deployment.pools.main.scheduler.max_num_seqs="
    at_80_percent = texts(record, "zero_queue", f"{slots}30")
    assert "above the minimum" in at_80_percent[0]
    assert re.search(r"at about (7|8)\d% of capacity", at_80_percent[0])
    assert "above the minimum" not in texts(decoding(5, slots=300), "zero_queue", f"{slots}300")[0]


# --- bursts and idle hours


def served(arrival: np.ndarray) -> RunRecord:
    """Return the record of a replica with steps of 20 ms, at most 8 requests, and 10 tokens each: 40 requests/s."""
    at_ns = np.rint(np.sort(arrival) * SECOND).astype(np.int64)
    return replay(at_ns, [100] * len(arrival), [10] * len(arrival), slots=8, step_ns=20 * MS)


EIGHT = "deployment.pools.main.scheduler.max_num_seqs=8"


def test_bursts_above_capacity_are_found_below_it() -> None:
    even = rng(5).uniform(0, 600, 1_500)
    burst = np.concatenate([rng(6).uniform(at, at + 4, 400) for at in (100, 400)])
    (text,) = texts(served(np.concatenate([even, burst])), "bursts_above_capacity", EIGHT)
    assert re.search(r"the mean load is about \d\d?% of capacity, but 3\d% of the requests arrived in bursts", text)
    assert "plan capacity for the bursts, not for the mean" in text


@pytest.mark.parametrize("rate", [4.0, 20.0, 34.0])
def test_poisson_arrivals_have_no_bursts(rate: float) -> None:
    arrival = np.cumsum(rng(7).exponential(1 / rate, 2_500))
    assert not texts(served(arrival), "bursts_above_capacity", EIGHT)


def test_milliseconds_taken_for_seconds_are_told() -> None:
    arrival = np.cumsum(rng(8).exponential(250, 200))
    (text,) = texts(served(arrival), "mostly_idle")
    assert re.match(r"requests arrived 2\d\d(\.\d)? s apart on average, for 1\d(\.\d+)? hours", text)
    (text,) = texts(served(arrival), "mostly_idle", "workload={trace: t.csv}")
    assert text.endswith("if the trace's times are in milliseconds, set workload.rate_scale to 1000")
    assert not texts(served(arrival / 1_000), "mostly_idle")
