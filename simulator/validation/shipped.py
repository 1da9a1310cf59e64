"""The shipped measured runs, by which the project's accuracy is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.common.shipped import find_measured, measured_names
from simulator.validation.errors import Compared
from simulator.validation.measured import read_rows
from simulator.validation.run import compare, leave_one_model_out


@dataclass(frozen=True, slots=True)
class Part:
    """Files that are judged together, with a short name and a title. If `held_out`, each model is predicted with host
    terms fitted to the others."""

    name: str
    title: str
    files: tuple[str, ...]
    held_out: bool = False


#: The parts of docs/accuracy.md and docs/speculation.md, in their order.
PARTS = (
    Part(
        "open_loop", "vLLM 0.15 under Poisson arrivals, each model held out of the fit", ("open_loop_vllm.csv",), True
    ),
    Part(
        "other_runs",
        "other measured runs, to which nothing was fitted",
        ("closed_loop_h100.csv", "poisson_a100.csv", "trtllm_online_h100.csv"),
    ),
    Part("speculation", "runs with speculative decoding, and without", ("spec_decode.csv",)),
)


def compare_all(seeds: int, jobs: int) -> Iterator[tuple[Part, list[Compared]]]:
    """Simulate the rows of each part, one part after the other."""
    for part in PARTS:
        rows = [row for name in part.files for row in read_rows(find_measured(Path(name)))]
        yield part, (leave_one_model_out if part.held_out else compare)(rows, seeds, jobs)


def listing() -> list[dict[str, str | int]]:
    """Return the shipped files: name, number of rows, and the title of their part."""
    titles = {name: part.title for part in PARTS for name in part.files}
    return [
        {"name": name, "rows": len(read_rows(find_measured(Path(name)))), "part": titles.get(name, "")}
        for name in measured_names()
    ]
