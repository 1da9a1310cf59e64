"""CPU time of a simulated request and of a simulated step by part: `python -m tests.bench.budget [SCENARIO ...]`.

The profile is statistical: a timer of CPU time interrupts the process again and again, and each sample counts for the
part of the innermost function on the stack that belongs to one (`PARTS`). The blocks of a request count as KV blocks of
the step that allocates them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from time import process_time
from types import CodeType, FrameType
from typing import NamedTuple

import simulator
from simulator.engine.clock import Clock
from tests.conftest import ROOT

_INTERVAL_S = 0.001
_RUN = Clock.run.__code__
_SCENARIOS = ("bench/steady_100k", "bench/defaults_100k")


class Part(NamedTuple):
    """A part of the work for a `unit` (request or step), and the beginnings of the names of its functions.

    A name is the file, below the repository, and the function, such as `simulator/engine/core.py:EngineCore._run`.
    """

    unit: str
    name: str
    functions: tuple[str, ...]


_ENGINE = "simulator/engine/"
_BATCHES = f"{_ENGINE}batches/"

#: The first part that matches counts, so that the exceptions come before the files that they are in.
PARTS = (
    Part("request", "source", (f"{_ENGINE}source.py", "simulator/workload/")),
    Part("request", "routing", ("simulator/routing/", f"{_ENGINE}routing_group.py:RoutingGroup.place")),
    Part(
        "request",
        "end",
        (
            f"{_ENGINE}core.py:EngineCore._finish",
            f"{_ENGINE}lifecycle.py:Lifecycle.complete",
            f"{_ENGINE}lifecycle.py:Lifecycle._count",
            f"{_ENGINE}routing_group.py",
            *(f"{_BATCHES}{name}" for name in ("lazy.py:LazyBatch._finish", "lazy.py:LazyBatch._leave_early")),
            *(f"{_BATCHES}base.py:BatchBase.{name}" for name in ("depart", "retire")),
            f"{_BATCHES}decode_tables.py:DecodeTables._leave",
            f"{_BATCHES}decode_tables.py:DecodeTables._settle",
        ),
    ),
    Part(
        "request",
        "record",
        (
            f"{_ENGINE}logs/request_log.py",
            f"{_ENGINE}logs/segment_log.py",
            f"{_ENGINE}core.py:EngineCore._log_changes",
            f"{_BATCHES}decode_tables.py:DecodeTables._record",
            f"{_BATCHES}decode_tables.py:DecodeTables._row",
        ),
    ),
    Part(
        "request",
        "admission",
        (
            f"{_ENGINE}admission.py",
            f"{_ENGINE}lifecycle.py",
            f"{_ENGINE}front_end.py",
            *(f"{_ENGINE}core.py:EngineCore.{name}" for name in ("submit", "_admit", "_let_in", "wake")),
            *(f"{_BATCHES}base.py:BatchBase.{name}" for name in ("add", "count_in", "admit")),
            f"{_BATCHES}sequences.py",
            f"{_BATCHES}lazy.py:LazyBatch._start_decoding",
            f"{_BATCHES}decode_tables.py:DecodeTables._join",
            f"{_BATCHES}decode_tables.py:Decode.",
        ),
    ),
    Part("step", "policy", ("simulator/scheduling/",)),
    Part("step", "KV blocks", ("simulator/memory/",)),
    Part("step", "cost", ("cost_models/",)),
    Part("step", "completion", (f"{_BATCHES}lazy.py:LazyBatch.complete",)),
    Part("step", "forming", (_BATCHES,)),
    Part("step", "log", (f"{_ENGINE}logs/",)),
    Part("step", "loop and clock", (f"{_ENGINE}core.py", f"{_ENGINE}clock.py", f"{_ENGINE}coasting.py")),
    Part("step", "other", (_ENGINE,)),
)


def part_of(functions: Sequence[str]) -> Part | None:
    """Return the part of a stack, given as names of functions from the innermost on; None outside the simulation."""
    for function in functions:
        for part in PARTS:
            if function.startswith(part.functions):
                return part
    return None


class Sampler:
    """Samples of the stack during the clock's run, and of other times, within this context."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[CodeType, ...]] = (
            Counter()
        )  # from the innermost function to `Clock.run`; else empty
        self._cpu_s = 0.0

    def __enter__(self) -> Sampler:
        self._handler = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        self._cpu_s -= process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._cpu_s += process_time()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._handler)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None and frame.f_code is not _RUN:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[() if frame is None else (*stack, _RUN)] += 1

    def seconds(self) -> dict[Part, float]:
        """Return the CPU time of each part in seconds: its share of the samples, since the system's timer is coarse."""
        counts: Counter[Part | None] = Counter()
        for stack, count in self._stacks.items():
            counts[part_of([f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_qualname}" for code in stack])] += (
                count
            )
        return {part: self._cpu_s * counts[part] / counts.total() for part in PARTS}


def _name(code: CodeType) -> str:
    return f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_qualname}"


class Budget(NamedTuple):
    """CPU time of each part in seconds, and the numbers of requests and steps."""

    seconds: dict[Part, float]
    requests: int
    steps: int

    def units(self, part: Part) -> int:
        """Return the number of requests or steps that the part works for."""
        return self.requests if part.unit == "request" else self.steps

    def part_us(self, part: Part) -> float:
        """Return the time of a part by its unit, in us."""
        return 1e6 * self.seconds[part] / self.units(part)


def budget_of(scenario: str) -> Budget:
    """Simulate a scenario and return the budget of the clock's run."""
    with Sampler() as sampler:
        record = simulator.run(scenario).record
    return Budget(sampler.seconds(), len(record.requests.arrival_ns), len(record.steps.start_ns))


def table_of(budget: Budget) -> str:
    """Return the rows of a budget: us of a request and of a step, by part."""
    lines = []
    for unit in ("request", "step"):
        parts = [part for part in PARTS if part.unit == unit]
        total = sum(budget.part_us(part) for part in parts)
        lines.append(f"a {unit:7} {total:5.2f} us, of {budget.units(parts[0]):,}")
        lines += [f"  {part.name:14} {budget.part_us(part):5.2f}" for part in parts]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.budget", description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*", default=_SCENARIOS, help="default: %(default)s")
    for scenario in parser.parse_args().scenarios:
        budget = budget_of(scenario)
        print(f"{scenario}: {sum(budget.seconds.values()):.2f} CPU s in the engine\n{table_of(budget)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
