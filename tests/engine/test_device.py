"""Devices and pipelines by hand and by their closed forms; no clock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import pytest

from cost_models import BatchShape, LinearLaw, StageTimes, StepCost
from simulator.engine.device import Device, Pipeline

STEP = BatchShape(decodes=1, decode_context=1, sampled=1)


@dataclass(frozen=True)
class Times(LinearLaw):
    """Every step takes these times."""

    stages_ns: tuple[int, ...] = ()
    sends_ns: tuple[int, ...] = ()
    cpu_ns: int = 0

    @property
    def stages(self) -> int:
        return len(self.stages_ns)

    def stage_times(self, shape: BatchShape) -> StageTimes:
        return StageTimes(self.stages_ns, self.sends_ns, self.cpu_ns)


def pipeline(*stages_ns: int, send_ns: int = 0, cpu_ns: int = 0) -> Pipeline:
    sends = (send_ns,) * (len(stages_ns) - 1)
    return Pipeline(Times(base_ns=1, stages_ns=stages_ns, sends_ns=sends, cpu_ns=cpu_ns))


def steps_until(stages: Pipeline, lanes: int, until_ns: int) -> int:
    """Return the number of steps that end by then, if each of `lanes` forms a step when its last one has ended."""
    ready, done = [(0, lane) for lane in range(lanes)], 0
    while ready[0][0] <= until_ns:
        now, lane = heapq.heappop(ready)
        done += now > 0
        heapq.heappush(ready, (stages.place(now, STEP)[1], lane))
    return done


def test_a_device_runs_steps_in_turn_when_the_cpu_has_prepared_them() -> None:
    device = Device()
    assert device.place(0, StepCost(100, 30)) == (30, 130)
    assert device.place(10, StepCost(100, 30)) == (130, 230)  # prepared from 30 to 60, behind the first
    assert device.place(225, StepCost(10, 30)) == (255, 265)


def test_a_step_passes_every_stage_and_send() -> None:
    assert pipeline(10, 20, 30, send_ns=1, cpu_ns=5).place(100, STEP) == (105, 167)


def test_steps_follow_one_another_through_the_stages() -> None:
    stages = pipeline(10, 30, 10)
    assert [stages.place(0, STEP) for _ in range(3)] == [(0, 50), (10, 80), (20, 110)]


def test_the_cpu_prepares_steps_one_by_one() -> None:
    stages = pipeline(10, 10, cpu_ns=25)
    assert [stages.place(0, STEP) for _ in range(3)] == [(25, 45), (50, 70), (75, 95)]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("batches", [1, 2, 4, 16, 64])
def test_one_pass_of_micro_batches_leaves_the_bubble_of_the_closed_form(stages: int, batches: int) -> None:
    """m micro-batches take m + p - 1 stage times, in which each stage works m: a share of (p - 1) / (m + p - 1) idles
    (Huang et al., GPipe, 2019; Narayanan et al., 2021)."""
    time_ns = 1000
    passed = pipeline(*[time_ns] * stages)
    ends = [passed.place(0, STEP)[1] for _ in range(batches)]
    assert ends[-1] == (batches + stages - 1) * time_ns
    idle = 1 - batches * time_ns / ends[-1]
    assert idle == pytest.approx((stages - 1) / (batches + stages - 1))


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 8, 12])
def test_steady_throughput_is_that_of_the_closed_form(stages: int, lanes: int) -> None:
    """m lanes over p stages of t each end min(m, p) steps in p t."""
    time_ns, rounds = 1000, 50
    done = steps_until(pipeline(*[time_ns] * stages), lanes, rounds * stages * time_ns)
    started = max(0, stages - 1) if lanes >= stages else lanes - 1  # steps that the first round lacks
    assert abs(done - rounds * min(lanes, stages)) <= started + 1


@pytest.mark.parametrize(
    ("settings", "stages_ns", "expected"),
    [
        ({}, (10, 40, 10, 20), 40),  # the slowest stage
        ({"send_ns": 7}, (10, 40, 10, 20), 40),  # sends hide behind other lanes' steps
        ({"cpu_ns": 50}, (10, 40, 10, 20), 50),  # the CPU, if it is slower
        ({"send_ns": 60}, (10, 10, 10, 10), 55),  # the way of 220 for each of 4 lanes
    ],
)
def test_what_limits_a_pipeline(settings: dict[str, Any], stages_ns: tuple[int, ...], expected: int) -> None:
    steps = steps_until(pipeline(*stages_ns, **settings), 4, 100_000)
    assert 100_000 / steps == pytest.approx(expected, rel=0.005)
