"""A discrete-event simulator of LLM serving.

`run` simulates a scenario, `compare` several over the same requests, `load_scenario` reads one, `load_results` reads
what `servesim run --out` wrote. They are imported when they are first used, so that `import simulator` costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.errors import InputError
    from simulator.results.store import load_results
    from simulator.scenario import Scenario, load_scenario
    from simulator.study.compare.run import compare
    from simulator.study.run import run

__all__ = ["InputError", "Scenario", "compare", "load_results", "load_scenario", "run"]

_HOMES = {
    "InputError": "simulator.errors",
    "Scenario": "simulator.scenario",
    "compare": "simulator.study.compare.run",
    "load_results": "simulator.results.store",
    "load_scenario": "simulator.scenario",
    "run": "simulator.study.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
