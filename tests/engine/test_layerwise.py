"""Layer-wise transfers: what of them is exposed after the prefill."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.clock import Clock
from simulator.engine.transfers.flows import Flow
from simulator.engine.transfers.layerwise import Layers, LayerwiseTransfer, Payload
from simulator.engine.transfers.links import Network
from simulator.network import Link

GB, S = 10**9, 10**9


def exposed_ns(
    size_bytes: int,
    layers: int | Layers,
    prefill_ns: int,
    sharing: str = "max_min",
    link: Link | None = None,
    descriptors: int = 0,
    start_ns: int = 0,
) -> int:
    """Return the time from the end of the prefill to that of the transfer, on a separate link (default 1 GB/s)."""
    clock = Clock()
    network = Network(clock, [link or Link("link", GB)], sharing)
    told: list[int] = []
    end_ns = start_ns + prefill_ns
    payload = Payload(size_bytes, descriptors, layers if isinstance(layers, Layers) else Layers(layers))
    LayerwiseTransfer(network, (0,), payload, (start_ns, end_ns), lambda: told.append(clock.now))
    clock.run()
    network.check()
    assert network.carried_bytes(0) == size_bytes
    (told_ns,) = told
    return told_ns - end_ns


@pytest.mark.parametrize("sharing", ["max_min", "fifo"])
@pytest.mark.parametrize(
    ("transfer_ns", "exposed"), [(429_500_000, 5_368_750), (2 * S, 1_012_500_000)], ids=["hidden", "slower"]
)
def test_e4d(sharing: str, transfer_ns: int, exposed: int) -> None:
    """A prefill of 1 s, 80 layers; transfers of 0.4295 s and of 2 s."""
    assert exposed_ns(transfer_ns, 80, S, sharing) == exposed


@given(st.integers(1, 2000), st.integers(1, 90), st.integers(1, 3000), st.integers(0, 500))
def test_it_is_the_closed_form(transfer_us: int, layers: int, prefill_us: int, start_us: int) -> None:
    """max(Tx / L, Tx - Tp (L - 1) / L), up to the rounding of a layer's bytes and of three times."""
    exposed = exposed_ns(transfer_us * 1000, layers, prefill_us * 1000, start_ns=start_us * 1000)
    tx, tp = Fraction(transfer_us * 1000), prefill_us * 1000
    assert abs(exposed - max(tx / layers, tx - Fraction(tp * (layers - 1), layers))) <= 4


@given(st.integers(1, 2000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 3000), st.integers(0, 400))
def test_groups_are_set_up_one_after_the_other(
    transfer_us: int, groups: int, together: int, prefill_us: int, setup_us: int
) -> None:
    """max(d + Tx / G, d + Tx - Tp (G - 1) / G, G d + Tx / G - Tp (G - 1) / G), up to the rounding of four times."""
    asked = Layers(groups * together, together, setup_us * 1000)
    exposed = exposed_ns(transfer_us * 1000, asked, prefill_us * 1000)
    tx, tp, d, count = Fraction(transfer_us * 1000), Fraction(prefill_us * 1000), setup_us * 1000, groups
    hidden = tp * (count - 1) / count
    closed = max(d + tx / count, d + tx - hidden, count * d + tx / count - hidden)
    assert abs(exposed - closed) <= 5


def test_the_last_group_has_what_is_left() -> None:
    """Ten layers by four: the last two are a fifth of the bytes, after a set-up of theirs."""
    assert (Layers(10, 4).groups, Layers(10, 4).last, Layers(10, 10).last, Layers(10, 99).groups) == (3, 2, 10, 1)
    assert exposed_ns(1000, Layers(10, 4, 70), 5000) == 70 + 200
    assert exposed_ns(1000, Layers(10, 99, 70), 5000) == 70 + 1000


def test_short_prefills_lose_by_their_groups() -> None:
    """Ten set-ups of 400 ns behind the first layer of 100 ns, which hide 900 ns of the prefill's 1,000."""
    assert exposed_ns(1000, Layers(10, 1, 400), 1000) == 100 + 10 * 400 + 100 - 1000 > exposed_ns(1000, 1, 1000)


def test_one_layer_is_sent_when_it_is_computed() -> None:
    assert exposed_ns(1000, 1, 5000) == 1000


def test_a_prefill_of_no_length_hides_nothing() -> None:
    assert exposed_ns(1000, 10, 0) == 1000


def test_setup_is_hidden_like_bytes() -> None:
    """The last layer waits for the latency and its own descriptors; 79 of 80 descriptors are posted before."""
    link = Link("link", GB, latency_ns=1000, descriptor_ns=100)
    assert exposed_ns(80_000, 80, S, link=link, descriptors=800) == 1000 + 10 * 100 + 1000


def test_setup_longer_than_the_prefill_is_exposed() -> None:
    """One posting after the other: 9 layers' descriptors and bytes from the first layer's end, then the last."""
    link = Link("link", GB, descriptor_ns=100)
    assert exposed_ns(1000, 10, 500, link=link, descriptors=100) == 50 + 90 * 100 + 900 + 10 * 100 + 100 - 500


def test_nothing_is_sent_before_it_is_computed() -> None:
    clock = Clock()
    network = Network(clock, [Link("link", GB)])
    LayerwiseTransfer(network, (0,), Payload(1000, 0, Layers(10)), (0, 10_000), lambda: None)
    carried: list[int] = []
    times = (1000, 3000, 5500, 10_000)
    for time_ns in times:
        clock.at(time_ns, lambda _: carried.append(network.carried_bytes(0)))
    clock.run()
    assert carried == [0, 200, 450, 900]


def test_others_have_what_the_computing_leaves() -> None:
    """A transfer at 0.1 GB/s, as fast as it is computed, beside one of 900 bytes on a link of 1 GB/s."""
    clock = Clock()
    network = Network(clock, [Link("link", GB)])
    LayerwiseTransfer(network, (0,), Payload(1000, 0, Layers(10)), (0, 10_000), lambda: None)
    clock.at(1000, lambda _: flows.append(network.send((0,), 900, 0, lambda: None)))
    flows: list[Flow] = []
    clock.run()
    assert flows[0].ended_ns == 2000


def test_in_turn_it_does_not_hold_up_those_behind_it() -> None:
    """The 900 bytes of the first nine layers go at the speed of the link, not of the computing."""
    clock = Clock()
    network = Network(clock, [Link("link", GB)], "fifo")
    LayerwiseTransfer(network, (0,), Payload(1000, 0, Layers(10)), (0, 10_000), lambda: None)
    clock.at(1000, lambda _: flows.append(network.send((0,), 900, 0, lambda: None)))
    flows: list[Flow] = []
    clock.run()
    assert flows[0].ended_ns == 1000 + 900 + 900


def test_what_was_held_up_catches_up_after_the_prefill() -> None:
    """The link is taken until the end of the prefill by three equals: a quarter is not enough for 0.9 GB/s."""
    clock = Clock()
    network = Network(clock, [Link("link", GB)])
    told: list[int] = []
    LayerwiseTransfer(network, (0,), Payload(9000, 0, Layers(10)), (0, 10_000), lambda: told.append(clock.now))
    clock.at(1000, lambda _: flows.extend(network.send((0,), 10**6, 0, pytest.fail) for _ in range(3)))
    flows: list[Flow] = []
    clock.at(10_000, lambda _: [network.abort(flow) for flow in flows])
    clock.run()
    sent = 9000 // 4
    assert told == [10_000 + (8100 - sent) + 900]


def test_the_layer_wise_transfer_is_never_later_than_one_after_the_prefill() -> None:
    for layers in (1, 2, 3, 32, 80):
        assert exposed_ns(999_983, layers, 700_001) <= 999_983 + 1
        assert exposed_ns(999_983, layers, 700_001) >= math.ceil(999_983 / layers)
