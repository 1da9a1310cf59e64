"""The lists of `servesim list`: for each kind, a function that returns one row of plain values per name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def gpus() -> list[Row]:
    """Return the GPUs: sizes in bytes, rates in bytes/s and FLOP/s, and in `kernels` the source of kernel times."""
    from cost_models import gpu_names, load_gpu
    from cost_models.kernels.files import calibrated_path, shipped_path

    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        path = calibrated_path(gpu)
        calibrated, own = path.is_file(), path != shipped_path(gpu)
        rows.append(
            {
                "name": name,
                "aliases": list(gpu.aliases),
                "memory_bytes": gpu.hbm_bytes,
                "bandwidth_bytes_per_s": gpu.hbm_bandwidth,
                "peak_flops": dict(gpu.peak_flops),
                "kernels": "your own calibration" if own else "calibrated" if calibrated else "estimated",
                "calibrated_as": path.stem if calibrated else None,
            }
        )
    return rows


def models() -> list[Row]:
    """Return the models: parameters, maximum context in tokens, KV bytes of a token over all layers, format of the
    weights.
    """
    from cost_models import active_parameters, kv_bytes_per_token, load_model, model_names, parameters

    rows = []
    for name in model_names():
        model = load_model(name)
        rows.append(
            {
                "name": name,
                "parameters": parameters(model).total,
                "active_parameters": active_parameters(model),
                "max_position": model.max_position,
                "kv_bytes_per_token": kv_bytes_per_token(model),
                "weights": model.native_quant or "bf16",
            }
        )
    return rows


def hosts() -> list[Row]:
    """Return the host models, for `cost_model.host`."""
    from cost_models import host_engine, host_names

    return [{"name": name, "description": host_engine(name)} for name in host_names()]


def acceptance() -> list[Row]:
    """Return the tables of acceptance: method, model, dataset, number of positions, and the acceptance length with all
    of them.
    """
    from simulator.speculation.expectation import expected_tokens
    from simulator.speculation.tables import load_table, table_names

    return [
        {
            "name": table.name,
            "method": table.method,
            "model": table.model,
            "dataset": table.dataset,
            "depth": len(table.cumulative),
            "acceptance_length": round(expected_tokens(table.cumulative), 4),
        }
        for table in map(load_table, table_names())
    ]


def formats() -> list[Row]:
    """Return the trace formats, with the columns that each requires."""
    from simulator.workload.formats import FORMATS

    return [
        {"name": name, "description": FORMATS[name].description, "columns": list(FORMATS[name].columns.required)}
        for name in sorted(FORMATS)
    ]


def scenarios() -> list[Row]:
    """Return the shipped scenarios, each with the first sentence of the comment at its top."""
    from simulator.common.shipped import find_scenario, scenario_names

    rows = []
    for name in scenario_names():
        lines = find_scenario(name).read_text(encoding="utf-8").splitlines()
        comment = [line.removeprefix("#").strip() for line in lines[: _comment_lines(lines)]]
        rows.append({"name": name, "description": _first_sentence(" ".join(comment))})
    return rows


def _comment_lines(lines: list[str]) -> int:
    """Return the number of comment lines at the top."""
    return next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))


def choices(name: str) -> Callable[[], list[Row]]:
    """Return the function that lists the alternatives of a choice of the schema, such as the routers, each with the
    first sentence of its class's docstring.
    """

    def rows() -> list[Row]:
        from inspect import getdoc

        from simulator.scenario import reader, schema

        classes = reader.alternatives(getattr(schema, name))
        return [{"name": each.TAG, "description": _first_sentence(getdoc(each) or "")} for each in classes]

    return rows


def _first_sentence(text: str) -> str:
    return re.split(r"\.(\s|$)", " ".join(text.split()), maxsplit=1)[0]


#: The lists by kind.
KINDS: dict[str, Callable[[], list[Row]]] = {
    "gpus": gpus,
    "models": models,
    "hosts": hosts,
    "schedulers": choices("Scheduler"),
    "routers": choices("Router"),
    "proposers": choices("Speculation"),
    "acceptance": acceptance,
    "formats": formats,
    "scenarios": scenarios,
}
