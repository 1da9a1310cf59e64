"""Measure the kernels of LLM serving on this machine's GPU, and write the CSV that `servesim calibrate` reads.

    python -m cost_models.profile_kernels --out my_gpu.csv

PyTorch is needed, and imported only when measuring starts. docs/profiling.md describes the measurements.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cost_models.calibration.schema import REQUIRED, WORDS
from cost_models.errors import CostModelError, unknown
from cost_models.profiling.campaign import Campaign, Factory
from cost_models.profiling.grid import Shape, build_grid, select
from cost_models.profiling.output import check_writable, write_rows
from cost_models.profiling.timing import Timer

EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

_PROGRAM = "python -m cost_models.profile_kernels"
_UNITS = {"s": 1, "min": 60, "h": 3600}


class Backend(NamedTuple):
    """The measuring side: the GPU's name, kernels and timer, the number of GPUs, and the processes that measure
    together.

    One of the processes, the `leader`, prints and writes for all.
    """

    gpu: str
    factories: Mapping[str, Factory]
    timer: Timer
    peers: int = 1
    world: int = 1
    leader: bool = True


def main(argv: Sequence[str] | None = None, open_backend: Callable[[], Backend] | None = None) -> int:
    """Run the command; return its exit code: 2 for bad input, which prints one line, 130 for an interrupt.

    `open_backend` returns the measuring side, by default that of this process's GPU.
    """
    arguments = _parser().parse_args(argv)
    try:
        budget_s = _seconds(arguments.budget)
        names = None if arguments.operators is None else _names("operator", arguments.operators, tuple(REQUIRED))
        dtypes = None if arguments.dtypes is None else _names("dtype", arguments.dtypes, WORDS["dtype"])
        check_writable(arguments.out)
        backend = (open_backend or _cuda)()
        operators = _operators(names, backend)
        grids = {
            operator: select(build_grid(operator, backend.world), dtypes, arguments.quick) for operator in operators
        }
        return _measure(backend, grids, budget_s, arguments.out)
    except CostModelError as error:
        print(f"profile_kernels: {error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        print("profile_kernels: interrupted; nothing is written", file=sys.stderr)
        return EXIT_INTERRUPTED


def _measure(backend: Backend, grids: Mapping[str, Sequence[Shape]], budget_s: float, out: Path) -> int:
    """Measure and write, also the measurements made before an interrupt."""
    tell = _tell if backend.leader else _silence
    campaign = Campaign(backend.gpu, backend.factories, backend.timer)
    interrupted = False
    tell(f"{backend.gpu}: {sum(len(grid) for grid in grids.values())} shapes, in at most {budget_s:g} s")
    try:
        campaign.run(grids, budget_s, tell)
    except KeyboardInterrupt:
        interrupted = True
    rows = campaign.rows
    if not rows:
        tell(f"profile_kernels: {'interrupted: ' if interrupted else ''}nothing was measured, nothing is written")
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    if backend.leader:
        write_rows(out, rows)
    if interrupted:
        left_out = sum(outcome.left_out for outcome in campaign.outcomes.values())
        tell(f"profile_kernels: interrupted; {out} is partial: {len(rows)} shapes measured, {left_out} left out")
        return EXIT_INTERRUPTED
    tell(f"{out}: {len(rows)} shapes of {backend.gpu}")
    return EXIT_DONE


def _operators(names: Sequence[str] | None, backend: Backend) -> list[str]:
    """Return the chosen operators, or all that this machine can measure. Raises CostModelError for others."""
    if backend.world > 1:
        if names not in (None, ["all_reduce"]):
            raise CostModelError("under torchrun only all_reduce is measured; leave torchrun out for other operators")
        return ["all_reduce"]
    if names is None:
        return [name for name in REQUIRED if name != "all_reduce" and (name != "p2p" or backend.peers > 1)]
    if "all_reduce" in names:
        raise CostModelError(
            "all_reduce takes a process a GPU; "
            "run torchrun --nproc-per-node GPUS -m cost_models.profile_kernels --out FILE"
        )
    if "p2p" in names and backend.peers < 2:
        raise CostModelError("p2p takes two GPUs, and there is one here; leave it out of --operators")
    return list(names)


def _cuda() -> Backend:
    from cost_models.profiling.device import CudaTimer, GroupTimer, open_device
    from cost_models.profiling.kernels import factories_on

    device = open_device()
    timer = CudaTimer(device)
    return Backend(
        gpu=device.gpu,
        factories=factories_on(device),
        timer=timer if device.world == 1 else GroupTimer(device, timer),
        peers=device.peers,
        world=device.world,
        leader=os.environ.get("RANK", "0") == "0",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Measure the kernels of LLM serving on this machine's GPU; needs PyTorch.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the CSV to write")
    parser.add_argument("--operators", metavar="A,B", help=f"only these, of {', '.join(REQUIRED)}")
    parser.add_argument("--dtypes", metavar="A,B", help=f"only these number formats, of {', '.join(WORDS['dtype'])}")
    parser.add_argument("--budget", metavar="TIME", default="9.5min", help="stop after it: 90s, 10min (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="the coarse grids only: about a minute")
    return parser


def _names(kind: str, text: str, known: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
    return names


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise CostModelError(f"--budget: expected a time such as 90s or 10min, found {text!r}")
    return seconds


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silence(text: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
