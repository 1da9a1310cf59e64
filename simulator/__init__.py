"""A discrete-event simulator of LLM serving.

`run` simulates a scenario, `replicate` one under several seeds, `compare` several over the same requests; `dry_run`
returns memory and bounds of one without simulating it; `validate` simulates measured runs again. `load_scenario`,
`load_results` and `load_trace` read files; `trace_stats` returns statistics of a trace. `list_models`, `list_gpus` and
`list_scenarios` return the built-in names, and `facts` their properties. Each is imported at its first use, so that
`import simulator` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.api.comparisons import compare
    from simulator.api.lists import facts, list_gpus, list_models, list_scenarios
    from simulator.api.measured import validate
    from simulator.api.replications import replicate
    from simulator.api.results import load_results
    from simulator.api.runs import dry_run, run
    from simulator.api.scenarios import load_scenario
    from simulator.api.traces import load_trace, trace_stats
    from simulator.comparison.outcome import Comparison
    from simulator.errors import InputError, StalledError
    from simulator.results.store import Results
    from simulator.scenario import Scenario
    from simulator.study.replications import Replications
    from simulator.study.run import Run
    from simulator.validation.outcome import Validation

    __version__: str

__all__ = [
    "Comparison",
    "InputError",
    "Replications",
    "Results",
    "Run",
    "Scenario",
    "StalledError",
    "Validation",
    "__version__",
    "compare",
    "dry_run",
    "facts",
    "list_gpus",
    "list_models",
    "list_scenarios",
    "load_results",
    "load_scenario",
    "load_trace",
    "replicate",
    "run",
    "trace_stats",
    "validate",
]

_MODULES = {
    "Comparison": "simulator.comparison.outcome",
    "InputError": "simulator.errors",
    "Replications": "simulator.study.replications",
    "Results": "simulator.results.store",
    "Run": "simulator.study.run",
    "Scenario": "simulator.scenario",
    "StalledError": "simulator.errors",
    "Validation": "simulator.validation.outcome",
    "compare": "simulator.api.comparisons",
    "dry_run": "simulator.api.runs",
    "facts": "simulator.api.lists",
    "list_gpus": "simulator.api.lists",
    "list_models": "simulator.api.lists",
    "list_scenarios": "simulator.api.lists",
    "load_results": "simulator.api.results",
    "load_scenario": "simulator.api.scenarios",
    "load_trace": "simulator.api.traces",
    "replicate": "simulator.api.replications",
    "run": "simulator.api.runs",
    "trace_stats": "simulator.api.traces",
    "validate": "simulator.api.measured",
}


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from simulator.common.version import version

            return version()
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_MODULES[name]), name))


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
