"""What can be listed: for each kind a function that gives one row of plain values a name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def gpus() -> list[Row]:
    """Sizes in bytes, rates in bytes/s and FLOP/s; `kernels` names where the times of kernels are from."""
    from cost_models import gpu_names, load_gpu
    from cost_models.kernels.calibrated import calibrated_path, shipped_path

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
    """Parameters, the longest context in tokens, bytes of KV a token over all layers, the format of the weights."""
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
    """Host models, for `cost_model.host`."""
    from cost_models import host_engine, host_names

    return [{"name": name, "description": host_engine(name)} for name in host_names()]


def acceptance() -> list[Row]:
    """Tables of acceptance: the method and model, the dataset, positions, and tokens a step with all of them."""
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
    """Formats of traces, with the columns that each must have."""
    from simulator.workload.formats import FORMATS

    return [
        {"name": name, "description": FORMATS[name].description, "columns": list(FORMATS[name].columns.required)}
        for name in sorted(FORMATS)
    ]


def scenarios() -> list[Row]:
    """Shipped scenarios, each with the first sentence of the comment at its top."""
    from simulator.common.shipped import find_scenario, scenario_names

    rows = []
    for name in scenario_names():
        lines = find_scenario(name).read_text(encoding="utf-8").splitlines()
        comment = [line.removeprefix("#").strip() for line in lines[: _comment_lines(lines)]]
        rows.append({"name": name, "description": _first_sentence(" ".join(comment))})
    return rows


def _comment_lines(lines: list[str]) -> int:
    """Lines at the top that are comments."""
    return next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))


def choices(name: str) -> Callable[[], list[Row]]:
    """The alternatives of a choice of the schema, such as the routers, each with the first sentence on its class."""

    def rows() -> list[Row]:
        from simulator.scenario import reader, schema

        classes = reader.alternatives(getattr(schema, name))
        return [{"name": each.TAG, "description": _first_sentence(inspect.getdoc(each) or "")} for each in classes]

    return rows


def _first_sentence(text: str) -> str:
    return re.split(r"\.(\s|$)", " ".join(text.split()), maxsplit=1)[0]


#: What can be listed, by kind.
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
