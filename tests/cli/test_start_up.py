"""Start-up: commands import no package and no part of the simulator that they do not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = ("scipy", "pandas", "matplotlib", "joblib")
#: Parts that a plain run does not need.
RARE = (
    "numpy.ma",  # np.unique imports it
    "cost_models.drafting.heads",
    "simulator.deployment.proposers",
    "simulator.engine.barrier",
    "simulator.engine.batches.explicit",
    "simulator.engine.batches.lazy_speculation",
    "simulator.engine.pipeline_core",
    "simulator.engine.transfers",
    "simulator.network",
    "simulator.results.bursts",
    "simulator.results.store",
    "simulator.speculation",
)
#: Parts that nothing needs where nothing is simulated.
SIMULATION = ("simpy", "simulator.engine.simulation", "simulator.results.metrics")


NOT_NEEDED: dict[str, tuple[str, ...]] = {
    "--help": (*SIMULATION, "numpy", "yaml", "rich", "dataclasses"),
    "list": (*SIMULATION, "numpy", "yaml", "rich", "dataclasses", "inspect"),
    "list gpus": (*SIMULATION, "numpy", "rich"),
    "run quickstart --set workload.limit=20": (*RARE, "numpy.random", "simulator.workload.synthetic"),
    "run quickstart --set workload.limit=20 --json": (*RARE, "rich"),
    "run bench/steady_100k --set workload.requests=20": ("simulator.workload.formats",),
    "run quickstart --dry-run": (*RARE, *SIMULATION),
    "run quickstart --dry-run --json": (*RARE, *SIMULATION, "rich"),
    "run designs/disaggregated --set workload.requests=50": ("simulator.engine.barrier",),
}


@pytest.mark.parametrize(("command", "unused"), NOT_NEEDED.items(), ids=NOT_NEEDED)
def test_only_what_is_needed_is_imported(command: str, unused: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom simulator.cli import main\n"
        f"try:\n    code = main({command.split()!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"loaded = [name for name in {HEAVY + unused!r} if name in sys.modules]\n"
        "sys.exit(f'exit code {code}, imported {loaded}' if code or loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_names_are_those_of_modules() -> None:
    """A module that was renamed would never be imported."""
    for name in {name for unused in NOT_NEEDED.values() for name in unused}:
        path = ROOT / name.replace(".", "/")
        outside = not name.startswith(("simulator.", "cost_models."))
        assert outside or path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name
