"""`servesim list` and `servesim trace stats`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from simulator.cli.codes import EXIT_DONE


def print_list(arguments: argparse.Namespace) -> int:
    """Print the names of one kind, one a line."""
    for line in LISTS[arguments.kind]():
        print(line)
    return EXIT_DONE


def trace_stats(arguments: argparse.Namespace) -> int:
    """Print the statistics of traces."""
    from simulator.study.traces import print_trace_statistics, trace_statistics_of

    statistics = {name: trace_statistics_of(name, arguments.trace_format) for name in arguments.files}
    if arguments.json:
        print(json.dumps(statistics, indent=2))
    else:
        print_trace_statistics(statistics)
    return EXIT_DONE


def _gpus() -> list[str]:
    from cost_models import gpu_names

    return gpu_names()


def _models() -> list[str]:
    from cost_models import model_names

    return model_names()


def _formats() -> list[str]:
    from simulator.workload.formats import FORMATS

    return sorted(FORMATS)


def _scenarios() -> list[str]:
    from simulator.data import scenario_names

    return scenario_names()


def _acceptance_tables() -> list[str]:
    from simulator.speculation.expectation import expected_tokens
    from simulator.speculation.tables import load_table, table_names

    tables = [load_table(name) for name in table_names()]
    width = max(len(table.name) for table in tables)
    return [
        f"{table.name:{width}}  depth {len(table.cumulative):2}, length {expected_tokens(table.cumulative):.2f}: "
        f"{table.model}, {table.dataset}"
        for table in tables
    ]


def _tags(name: str) -> Callable[[], list[str]]:
    """The values of a tagged choice of the schema, such as the routers."""

    def tags() -> list[str]:
        from simulator.scenario import reader, schema

        return reader.tags(getattr(schema, name))

    return tags


#: What can be listed.
LISTS: dict[str, Callable[[], list[str]]] = {
    "gpus": _gpus,
    "models": _models,
    "schedulers": _tags("Scheduler"),
    "routers": _tags("Router"),
    "proposers": _tags("Speculation"),
    "acceptance": _acceptance_tables,
    "formats": _formats,
    "scenarios": _scenarios,
}
