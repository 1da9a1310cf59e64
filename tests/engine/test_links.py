"""Transfers over shared links: exact times, conservation of bytes, ends and aborts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import load_gpu
from simulator.common.randomness import stream
from simulator.engine.clock import Clock
from simulator.engine.transfers.flows import Flow
from simulator.engine.transfers.links import Network
from simulator.network import Group, Link, build_topology
from simulator.scenario.links import Links, Nics

GB, S = 10**9, 10**9
#: KV bytes of a token of a 70B model: 80 layers, 8 KV heads of 128, keys and values in 16 bits.
TOKEN_70B = 80 * 8 * 128 * 2 * 2


@dataclass(frozen=True)
class Sent:
    """One transfer of a test."""

    at_ns: int
    route: tuple[int, ...]
    size_bytes: int
    cap: int | None = None


def links_of(*bytes_per_s: int, latency_ns: int = 0, descriptor_ns: int = 0) -> list[Link]:
    return [Link(f"link {i}", rate, latency_ns, descriptor_ns) for i, rate in enumerate(bytes_per_s)]


def ends(sent: Sequence[Sent], *bytes_per_s: int, sharing: str = "max_min") -> list[int]:
    """Return the end of each transfer; bytes are conserved at every end."""
    clock = Clock()
    network = Network(clock, links_of(*bytes_per_s), sharing)
    found = [-1] * len(sent)

    def over(index: int) -> None:
        found[index] = clock.now
        network.check()

    for index, each in enumerate(sent):
        send = partial(network.send, each.route, each.size_bytes, 0, partial(over, index), each.cap)
        clock.at(each.at_ns, lambda _, send=send: send())
    clock.run()
    network.check()
    return found


# --- one link -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_bytes", "bytes_per_s", "seconds"),
    [
        (10 * 2**30, 25 * GB, 0.429497),
        (1000 * TOKEN_70B, 25 * GB, 0.0131072),
        (8192 * TOKEN_70B, 100 * GB // 8, 0.214748),
    ],
    ids=["10 GiB", "1,000 tokens", "8,192 tokens"],
)
def test_a_lone_transfer_takes_bytes_over_bandwidth(size_bytes: int, bytes_per_s: int, seconds: float) -> None:
    (end_ns,) = ends([Sent(0, (0,), size_bytes)], bytes_per_s)
    assert end_ns == math.ceil(Fraction(size_bytes * S, bytes_per_s))
    assert end_ns / S == pytest.approx(seconds, abs=5e-7)


THREE = [Sent(0, (0,), 10 * GB), Sent(S // 5, (0,), 4 * GB), Sent(S // 2, (0,), 1 * GB)]


def test_three_flows_share_a_link() -> None:
    """Rates 10, 5, 3.33, 5 and 10 GB/s."""
    assert ends(THREE, 10 * GB) == [1_500_000_000, 1_100_000_000, 800_000_000]


def test_three_flows_take_turns() -> None:
    assert ends(THREE, 10 * GB, sharing="fifo") == [1_000_000_000, 1_400_000_000, 1_500_000_000]


def test_two_links() -> None:
    """Rates 8, 2 and 2 GB/s: 8, 2 and 2 GB end together."""
    sent = [Sent(0, (0,), 8 * GB), Sent(0, (0, 1), 2 * GB), Sent(0, (1,), 2 * GB)]
    assert ends(sent, 10 * GB, 4 * GB) == [S, S, S]


def test_a_cap() -> None:
    """Rates 1, 4.5 and 4.5 GB/s."""
    sent = [Sent(0, (0,), 1 * GB, cap=1 * GB), Sent(0, (0,), 4_500_000_000), Sent(0, (0,), 4_500_000_000)]
    assert ends(sent, 10 * GB) == [S, S, S]


def test_flows_with_the_same_cap_end_one_by_one() -> None:
    """Each has 0.1 GB/s, independent of the others: a later one may be the first to end."""
    sent = [Sent(at_ns, (0,), size_bytes, cap=GB // 10) for at_ns, size_bytes in ((0, 1000), (50, 500), (100, 20))]
    assert ends(sent, GB) == [10_000, 5050, 300]


def test_thirds_of_a_link_add_no_nanosecond() -> None:
    """Rates that are rounded down do not make a whole number of nanoseconds one more."""
    assert ends([Sent(0, (0,), GB)] * 3, GB) == [3 * S] * 3
    assert ends([Sent(0, (0,), 7 * 10**12)] * 7, 10 * GB) == [4_900 * S] * 7


def test_an_end_within_a_nanosecond_is_rounded_up() -> None:
    assert ends([Sent(0, (0,), 1)], 3 * GB) == [1]
    assert ends([Sent(0, (0,), 4)], 3 * GB) == [2]


def test_nothing_takes_no_time() -> None:
    assert ends([Sent(5, (0,), 0), Sent(5, (0,), 10)], GB) == [5, 15]


def test_in_turn_nothing_waits_for_its_turn() -> None:
    assert ends([Sent(0, (0,), 10), Sent(5, (0,), 0)], GB, sharing="fifo") == [10, 10]


# --- any number of links --------------------------------------------------------------------------------------------


def exact_ends(sent: Sequence[Sent], capacities: Sequence[int]) -> list[int]:
    """Return the ends by rational numbers and one flow at a time; a flow keeps its share up to the end of a nanosecond.

    Capacities and caps are such that no end is so close to a whole nanosecond that the engine takes it for one.
    """
    left = [Fraction(each.size_bytes) for each in sent]
    found = [-1] * len(sent)
    now = 0
    while -1 in found:
        active = [i for i, each in enumerate(sent) if each.at_ns <= now and found[i] < 0]
        rates = exact_rates([sent[i] for i in active], capacities)
        dues = [now + math.ceil(left[i] / rate) for i, rate in zip(active, rates, strict=True)]
        dues += [each.at_ns for each in sent if each.at_ns > now]
        following = min(dues)
        for i, rate in zip(active, rates, strict=True):
            left[i] -= rate * (following - now)
            if left[i] <= 0:
                found[i] = following
        now = following
    return found


def exact_rates(flows: Sequence[Sent], capacities: Sequence[int]) -> list[Fraction]:
    """Return max-min fair rates in bytes a nanosecond, by filling link after link, the tightest first."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        shares = []
        for link, capacity in enumerate(capacities):
            crossing = [i for i, each in enumerate(flows) if link in each.route]
            open_ = [i for i in crossing if i not in rates]
            if open_:
                left = Fraction(capacity, S) - sum(rates[i] for i in crossing if i in rates)
                shares.append((left / len(open_), open_))
        shares += [(Fraction(each.cap, S), [i]) for i, each in enumerate(flows) if each.cap and i not in rates]
        share, those = min(shares)
        rates |= dict.fromkeys(those, share)
    return [rates[i] for i in range(len(flows))]


SENT = st.builds(
    Sent,
    st.integers(0, 3000),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(0, 5000),
    st.none() | st.integers(1, 8).map(lambda quarters: quarters * GB // 4),
)


@settings(max_examples=40)
@given(st.lists(SENT, min_size=1, max_size=9), st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_ends_are_those_of_rational_numbers(sent: list[Sent], speeds: list[int]) -> None:
    capacities = [speed * GB // 2 for speed in speeds]
    assert ends(sent, *capacities) == exact_ends(sent, capacities)


@pytest.mark.parametrize("sharing", ["max_min", "fifo"])
def test_bytes_are_conserved_over_10000_random_transfers(sharing: str) -> None:
    """Replicas of random sizes on nodes with shared NICs; an eighth of the transfers is aborted in flight."""
    draw = stream(11, f"links {sharing}")
    groups = [Group(4, int(gpus), load_gpu("h100-sxm")) for gpus in draw.integers(1, 9, 6)]
    topology = build_topology(groups, Links(network=Nics(nics_per_node=4)))
    clock = Clock()
    network = Network(clock, topology.links, sharing)
    over: list[Flow] = []
    flows: list[Flow] = []
    moved: dict[int, int] = {}  # bytes of each flow that was aborted
    pairs = draw.integers(0, 24, (10_000, 2))
    sizes, gaps = draw.integers(0, 10**8, 10_000), draw.integers(0, 400_000, 10_000)

    def send(index: int) -> None:
        source, target = (int(each) for each in pairs[index])
        route = topology.to_host(source) if source == target else topology.route(source, target)
        flow = network.send(route, int(sizes[index]), index % 5, lambda: over.append(flow))
        flows.append(flow)
        if index % 8 == 7:
            moved[index - 5] = network.abort(flows[index - 5])
        if not index % 50:
            network.check()
        if index + 1 < len(sizes):
            clock.at(clock.now + int(gaps[index]), lambda _: send(index + 1))

    clock.at(0, lambda _: send(0))
    clock.run()
    network.check()
    aborted = {index: flow for index, flow in enumerate(flows) if flow not in over}
    assert 0 < len(aborted) <= len(moved) == 1250
    assert all(flow.ended_ns >= flow.began_ns for flow in over)
    assert all(0 <= moved[index] <= flow.size_bytes for index, flow in aborted.items())
    assert any(0 < moved[index] < flow.size_bytes for index, flow in aborted.items())
    sent = np.zeros(len(topology.links))
    for index, flow in enumerate(flows):
        sent[list(flow.route)] += moved[index] if index in aborted else flow.size_bytes
    carried = np.array([network.carried_bytes(link) for link in range(len(topology.links))])
    assert np.all((carried - sent >= 0) & (carried - sent <= len(aborted)))  # parts of a byte of what was aborted


@pytest.mark.parametrize("sharing", ["max_min", "fifo"])
def test_no_link_carries_more_than_it_can(sharing: str) -> None:
    """A link that is never idle takes just as long as its capacity needs for all that crosses it."""
    sent = [Sent(0, (0, 1 + i % 2), 1000 + 17 * i) for i in range(40)]
    total = sum(each.size_bytes for each in sent)
    assert max(ends(sent, GB, GB, GB, sharing=sharing)) in range(total, total + len(sent))


@settings(max_examples=40)
@given(st.lists(SENT, min_size=1, max_size=9), st.lists(st.integers(0, 500), min_size=9, max_size=9), st.data())
def test_ends_do_not_depend_on_when_the_network_is_looked_at(
    sent: list[Sent], setups: list[int], data: st.DataObject
) -> None:
    """A check adds flows to streams that would have ended without one, or would have been added later."""
    sharing = data.draw(st.sampled_from(["max_min", "fifo"]))
    looks = data.draw(st.lists(st.integers(0, 5000), max_size=8))
    found = [ends_with_setup(sent, setups, sharing, times) for times in ([], looks, range(0, 20_000, 7))]
    assert found[0] == found[1] == found[2]


def ends_with_setup(
    sent: Sequence[Sent], setups: Sequence[int], sharing: str, looks: Sequence[int]
) -> list[tuple[int, int]]:
    """Return beginning and end of each transfer, set up for so many ns, with checks of the network at `looks`."""
    clock = Clock()
    network = Network(clock, links_of(*[GB, GB // 2, 3 * GB, GB], descriptor_ns=1), sharing)
    flows: dict[int, Flow] = {}

    def send(index: int) -> None:
        each = sent[index]
        flows[index] = network.send(each.route, each.size_bytes, setups[index], lambda: None, each.cap)

    for index, each in enumerate(sent):
        clock.at(each.at_ns, lambda _, index=index: send(index))
    for time_ns in looks:
        clock.at(time_ns, lambda _: network.check())
    clock.run()
    network.check()
    assert not clock._queue
    return [(flows[index].began_ns, flows[index].ended_ns) for index in range(len(sent))]


# --- starts, ends, aborts -------------------------------------------------------------------------------------------


def test_those_that_end_together_are_told_in_the_order_of_sending_and_may_send_at_once() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB, GB))
    told: list[tuple[str, int]] = []

    def tell(name: str) -> None:
        told.append((name, clock.now))
        if len(told) < 4:
            network.send((0,), 500, 0, partial(tell, f"{name}'s"))

    clock.at(
        0, lambda _: [network.send((1,), 1000, 0, partial(tell, "a")), network.send((0,), 1000, 0, partial(tell, "b"))]
    )
    clock.run()
    assert told == [("a", 1000), ("b", 1000), ("a's", 2000), ("b's", 2000), ("a's's", 2500)]


def test_done_is_not_called_from_within_send() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB))
    told: list[int] = []
    flow = network.send((0,), 0, 0, lambda: told.append(clock.now))
    assert told == []
    clock.run()
    assert told == [0] == [flow.ended_ns]


def test_an_abort_gives_the_link_to_the_others() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB))
    told: list[int] = []
    flows = [network.send((0,), 1000, 0, lambda: told.append(clock.now)) for _ in range(2)]
    moved: list[int] = []
    clock.at(500, lambda _: moved.append(network.abort(flows[0])))
    clock.run()
    assert moved == [250]
    assert told == [1250]
    assert (flows[0].ended_ns, network.abort(flows[0])) == (500, 250)
    assert network.carried_bytes(0) == 1250
    network.check()


def test_in_turn_an_abort_lets_the_next_one_go() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB), "fifo")
    told: list[int] = []
    flows = [network.send((0,), 1000, 0, lambda: told.append(clock.now)) for _ in range(3)]
    clock.at(300, lambda _: [network.abort(flows[0]), network.abort(flows[1])])
    clock.run()
    assert told == [1300]
    network.check()


def test_an_abort_during_the_setup_moves_nothing() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB, latency_ns=100))
    flow = network.send((0,), 1000, 0, pytest.fail)
    clock.at(50, lambda _: network.abort(flow))
    clock.run()
    assert (flow.began_ns, flow.ended_ns, network.carried_bytes(0)) == (-1, 50, 0)


def test_an_abort_of_what_is_over_changes_nothing() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB))
    flow = network.send((0,), 1000, 0, lambda: None)
    clock.run()
    assert (network.abort(flow), flow.ended_ns) == (1000, 1000)
    network.check()


def test_an_abort_at_the_end_is_an_abort() -> None:
    """An abort before the network's event of that instant: all bytes have arrived, but `done` is not called."""
    clock = Clock()
    network = Network(clock, links_of(3 * GB))
    flows: list[Flow] = []
    clock.at(2, lambda _: network.abort(flows[0]))
    flows.append(network.send((0,), 4, 0, pytest.fail))
    clock.run()
    assert network.abort(flows[0]) == 4 == network.carried_bytes(0)
    network.check()


def test_what_is_aborted_by_one_that_ends_with_it_is_not_told() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB))
    flows: list[Flow] = []

    def abort_second() -> None:
        network.abort(flows[1])

    flows.append(network.send((0,), 1000, 0, abort_second))
    flows.append(network.send((0,), 1000, 0, pytest.fail))
    clock.run()
    assert [flow.ended_ns for flow in flows] == [2000, 2000]
    assert (flows[1].aborted, network.abort(flows[1])) == (True, 1000)


@pytest.mark.parametrize(("sharing", "end_ns"), [("max_min", [1400, 1400]), ("fifo", [1040, 2040])])
def test_without_its_cap_a_flow_goes_on_at_its_share(sharing: str, end_ns: list[int]) -> None:
    """100 MB/s until 400 ns; in turn it keeps its place, and the other waits."""
    clock = Clock()
    network = Network(clock, links_of(GB), sharing)
    told: list[int] = []
    size = 540 if sharing == "max_min" else 680
    slow = network.send((0,), size, 0, lambda: told.append(clock.now), cap=GB // 10)
    network.send((0,), 860 if sharing == "max_min" else 1000, 0, lambda: told.append(clock.now))
    clock.at(400, lambda _: network.uncap(slow))
    clock.run()
    assert told == end_ns
    network.check()


@pytest.mark.parametrize(
    ("route", "size_bytes", "descriptors", "cap"),
    [((), 1, 0, None), ((0,), -1, 0, None), ((0,), 1, -1, None), ((0,), 1, 0, 0)],
)
def test_what_is_no_transfer_is_refused(
    route: tuple[int, ...], size_bytes: int, descriptors: int, cap: int | None
) -> None:
    with pytest.raises(ValueError, match="no transfer"):
        Network(Clock(), links_of(GB)).send(route, size_bytes, descriptors, pytest.fail, cap)


def test_a_check_finds_what_does_not_add_up() -> None:
    clock = Clock()
    network = Network(clock, links_of(GB))
    flow = network.send((0,), 1000, 0, lambda: None)
    network.check()
    flow.target += 1
    with pytest.raises(AssertionError, match="link 0: flows got"):
        network.check()


def test_the_network_has_one_pending_event() -> None:
    """A hundred flows, each of which ends later than those before it, wait for the first one's end."""
    clock = Clock()
    network = Network(clock, links_of(GB, *[GB] * 100))
    for index in range(100):
        network.send((index + 1,), 1000 + index, 0, lambda: None)
    assert len(clock._queue) == 1


def test_ends_that_have_moved_are_forgotten() -> None:
    """A thousand short flows beside a long one, whose end each of them moves to and fro."""
    clock = Clock()
    network = Network(clock, links_of(GB))
    network.send((0,), 10**6, 0, lambda: None)
    kept: list[int] = []

    def send(left: int) -> None:
        kept.append(len(network._streams._ends))
        if left:
            network.send((0,), 100, 0, partial(send, left - 1), cap=GB // 10)

    send(1000)
    clock.run()
    assert clock.now == 1_000_000 + 100_000
    assert max(kept) < 100


# --- setup ----------------------------------------------------------------------------------------------------------


def transfer_ns(link: Link, size_bytes: int, descriptors: int) -> int:
    """Return the time of a lone transfer."""
    clock = Clock()
    flow = Network(clock, [link]).send((0,), size_bytes, descriptors, lambda: None)
    clock.run()
    return flow.ended_ns


def test_the_slowest_link_of_the_route_sets_the_latency() -> None:
    clock = Clock()
    network = Network(clock, [Link("out", GB, 100, 3), Link("in", GB, 70, 5)])
    flow = network.send((0, 1), 1000, 10, lambda: None)
    clock.run()
    assert (flow.began_ns, flow.ended_ns) == (150, 1150)


PAYLOAD = 4_900_000_000
#: A fast fabric on which posting is dear (cuda_ipc), and a slower one on which it is cheap (RDMA).
MNNVL = Link("mnnvl", 900 * GB, 2000, 1500)
RDMA = Link("rdma", 50 * GB, 5000, 200)


@pytest.mark.parametrize("descriptors", [110_000, 55_000, 1000])
def test_time_is_descriptors_and_bytes(descriptors: int) -> None:
    """T = latency + n t_descriptor + bytes / bandwidth: half the descriptors, half of that term and no more."""
    bytes_ns = math.ceil(Fraction(PAYLOAD, 900))
    assert transfer_ns(MNNVL, PAYLOAD, descriptors) == 2000 + descriptors * 1500 + bytes_ns
    whole, half = (transfer_ns(MNNVL, PAYLOAD, n) - 2000 - bytes_ns for n in (descriptors, descriptors // 2))
    assert whole == 2 * half


def test_many_descriptors_turn_the_faster_fabric_into_the_slower_one() -> None:
    """4.9 GB in 110,000 pieces of 45 kB, and in 1,000."""
    assert transfer_ns(MNNVL, PAYLOAD, 110_000) > transfer_ns(RDMA, PAYLOAD, 110_000)
    assert transfer_ns(MNNVL, PAYLOAD, 1000) < transfer_ns(RDMA, PAYLOAD, 1000)
