"""Campaigns over grids: the budget, the cut-off, failures, and the rows after an interrupt."""

from __future__ import annotations

import pytest

from cost_models import load_gpu
from cost_models.calibration.schema import REQUIRED
from cost_models.profiling.campaign import SHARES, Campaign, Failure, Kernel, Outcome, summary
from cost_models.profiling.grid import Shape, build_grid, grid_of
from cost_models.profiling.timing import KernelError
from tests.unit.cost_models.profiling.fakes import VirtualGpu


def copies(count: int) -> list[Shape]:
    return grid_of("p2p", [{}], {"bytes": range(1, count + 1)})


def norms(count: int) -> list[Shape]:
    return grid_of("elementwise", [{"name": "norm", "hidden": 8, "bytes": 64}], {"tokens": range(1, count + 1)})


def test_rows_have_what_was_measured() -> None:
    gpu = VirtualGpu(lambda shape: 10.0 * shape.number("bytes"))
    campaign = Campaign("Card", gpu.factories("p2p"), gpu)
    told: list[str] = []
    campaign.run({"p2p": copies(2)}, 60, told.append)
    common = {"gpu": "Card", "operator": "p2p", "source": "virtual"}
    assert campaign.rows == [
        common | {"bytes": "1", "latency_us": "10.000"},
        common | {"bytes": "2", "latency_us": "20.000"},
    ]
    assert gpu.flushes == 2 * 9
    assert told == ["p2p: 2 of 2 shapes in 0 s"]


def test_a_cut_off_keeps_the_first_shapes_and_counts_the_rest() -> None:
    gpu = VirtualGpu(lambda _: 1e6)  # five calls of a second each
    campaign = Campaign("Card", gpu.factories("p2p"), gpu)
    told: list[str] = []
    campaign.run({"p2p": copies(9)}, 12.0, told.append)
    assert [row["bytes"] for row in campaign.rows] == ["1", "2", "3"]
    assert campaign.outcomes["p2p"].left_out == 6
    assert told == ["p2p: 3 of 9 shapes in 15 s; 6 finer ones left out when its time was up"]


def test_what_an_operator_leaves_over_goes_to_the_next() -> None:
    """A second a call, five calls a shape: of 60 s, p2p gets 20 and needs 5, so the norms get 55: 11 shapes."""
    gpu = VirtualGpu(lambda _: 1e6)
    campaign = Campaign("Card", gpu.factories("p2p", "elementwise"), gpu)
    campaign.run({"elementwise": norms(99), "p2p": copies(1)}, 60.0, lambda _: None)
    assert [shape.operator for shape in gpu.prepared] == ["p2p"] + ["elementwise"] * 11
    assert campaign.outcomes["elementwise"].left_out == 88


def test_every_operator_has_a_share() -> None:
    assert set(SHARES) == set(REQUIRED)


def test_failures_are_grouped_and_the_rest_is_measured() -> None:
    gpu = VirtualGpu(lambda _: 5.0)

    def picky(shape: Shape) -> Kernel:
        size = shape.number("bytes")
        if size in (2, 3):
            raise MemoryError(f"tried to allocate {size} GiB\nand more lines")
        if size == 4:
            raise KernelError("no such kernel")
        return gpu.prepare(shape)

    campaign = Campaign("Card", {"p2p": picky}, gpu)
    campaign.run({"p2p": copies(5)}, 60, lambda _: None)
    outcome = campaign.outcomes["p2p"]
    assert [row["bytes"] for row in campaign.rows] == ["1", "5"]
    assert list(outcome.failures.values()) == [
        Failure("MemoryError: tried to allocate 2 GiB", "bytes=2", 2),
        Failure("no such kernel", "bytes=4", 1),
    ]
    assert (outcome.measured, outcome.failed, outcome.left_out) == (2, 3, 0)
    assert summary("p2p", outcome).splitlines()[1:] == [
        "  2 failed, the first at bytes=2: MemoryError: tried to allocate 2 GiB",
        "  1 failed, the first at bytes=4: no such kernel",
    ]


def test_a_time_of_nothing_is_a_failure_not_a_row() -> None:
    gpu = VirtualGpu(lambda _: 0.0)
    campaign = Campaign("Card", gpu.factories("p2p"), gpu)
    campaign.run({"p2p": copies(1)}, 60, lambda _: None)
    assert campaign.rows == []
    (failure,) = campaign.outcomes["p2p"].failures.values()
    assert failure.reason == "measurement: latency_us: expected microseconds above 0, found '0.000'"


def test_an_interrupt_leaves_what_was_measured() -> None:
    gpu = VirtualGpu(lambda _: 5.0)

    def until_third(shape: Shape) -> Kernel:
        if shape.number("bytes") == 3:
            raise KeyboardInterrupt
        return gpu.prepare(shape)

    campaign = Campaign("Card", {"p2p": until_third}, gpu)
    with pytest.raises(KeyboardInterrupt):
        campaign.run({"p2p": copies(5)}, 60, lambda _: None)
    assert [row["bytes"] for row in campaign.rows] == ["1", "2"]
    assert campaign.outcomes["p2p"] == Outcome(5, measured=2, seconds=pytest.approx(0.0, abs=0.1))


class PaperGpu(VirtualGpu):
    """A GPU whose kernels reach half of its peaks; a shape's random data takes 2 ms, and three passes over memory."""

    def __init__(self, name: str) -> None:
        spec = load_gpu(name)
        self._flops, self._bandwidth = spec.peak("bf16") / 2, spec.hbm_bandwidth / 2
        flush_s = 2 * 2**29 / self._bandwidth  # 512 MiB, written and read
        super().__init__(self._us, lambda shape: 2e-3 + 3 * work(shape)[1] / self._bandwidth, flush_s)

        self._fp8 = "fp8" in spec.peak_flops

    def prepare(self, shape: Shape) -> Kernel:
        if "fp8" in shape.cells.values() and not self._fp8:
            raise KernelError("this GPU has no FP8 arithmetic")
        return super().prepare(shape)

    def _us(self, shape: Shape) -> float:
        flops, size = work(shape)
        return 5 + 1e6 * max(flops / self._flops, size / self._bandwidth)


def work(shape: Shape) -> tuple[float, float]:
    """Return the FLOPs, and the bytes in BF16, of a shape."""
    at = {column: value for column, value in shape.cells.items() if isinstance(value, int)}
    if shape.operator == "gemm":
        return 2.0 * at["m"] * at["n"] * at["k"], 2.0 * (at["m"] * (at["n"] + at["k"]) + at["n"] * at["k"])
    if shape.operator.endswith("attention"):
        tokens = at.get("tokens", 1)
        keys, numbers = at["context"] + tokens, at["batch"] * at["head_dim"]
        return 4.0 * numbers * at["heads"] * tokens * keys, 4.0 * numbers * (
            at["kv_heads"] * keys + at["heads"] * tokens
        )
    if shape.operator == "moe":
        chosen, expert = at["tokens"] * at["top_k"], 3.0 * at["hidden"] * at["width"]
        return 2.0 * expert * chosen, 2.0 * expert * at["experts"]
    return 0.0, float(at["bytes"])


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb"])
def test_the_whole_grid_takes_less_than_ten_minutes(name: str) -> None:
    """By arithmetic, with everything that a machine with a second GPU measures: nothing is left out."""
    gpu = PaperGpu(name)
    operators = [operator for operator in REQUIRED if operator != "all_reduce"]
    campaign = Campaign(name, gpu.factories(*operators), gpu)
    start = gpu.now()
    campaign.run({operator: build_grid(operator) for operator in operators}, 9.5 * 60, lambda _: None)
    assert {operator: outcome.left_out for operator, outcome in campaign.outcomes.items()} == dict.fromkeys(
        operators, 0
    )
    assert 2 * 60 < gpu.now() - start < 9.5 * 60
