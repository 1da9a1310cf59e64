"""`simulator.validate`: measured runs compared with their simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.api.boundary import boundary, check_counts
from simulator.common.shipped import find_measured
from simulator.errors import InputError, did_you_mean
from simulator.validation.bench.server import OPTIONS
from simulator.validation.outcome import Validation
from simulator.validation.report import check_folder, write_report
from simulator.validation.run import compare, read_measured
from simulator.validation.run import leave_one_model_out as compare_leaving_models_out

_SERVER_PARAMETERS = ("gpu", "model", "tensor_parallel")


@boundary
def validate(
    files: str | Path | Sequence[str | Path],
    *,
    gpu: str | None = None,
    model: str | None = None,
    tensor_parallel: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: int = 5,
    jobs: int = 1,
    leave_one_model_out: bool = False,
    out: str | Path | None = None,
) -> Validation:
    """Simulate measured serving runs, and compare every measured metric with its prediction.

    Args:
        files: CSV files of measured runs, names of shipped ones, or results of `vllm bench serve` (JSON).
        gpu, model, tensor_parallel: the server of a `vllm bench serve` result.
        settings: further settings of that server, such as `{"weights": "fp8"}`, as for `servesim validate --set`.
        seeds: the number of independent arrival processes; predictions are medians over them.
        jobs: the number of processes, -1 for all cores.
        leave_one_model_out: predict each model with host terms fitted to the other models.
        out: a folder for the files that `servesim validate --out` writes.

    Raises:
        InputError: a file has a mistake in it, or its server is not known.
    """
    check_counts(seeds, jobs)
    if out is not None:
        check_folder(Path(out))
    given: dict[str, Any] = dict(settings or {})
    for name in given:
        if name not in OPTIONS:
            raise InputError(f"settings: {name!r} is not known{did_you_mean(str(name), OPTIONS)}")
    given |= dict(zip(_SERVER_PARAMETERS, (gpu, model, tensor_parallel), strict=True))
    paths = [find_measured(Path(file)) for file in ([files] if isinstance(files, str | Path) else files)]
    rows = read_measured(paths, {name: _text(value) for name, value in given.items() if value is not None})
    run = compare_leaving_models_out if leave_one_model_out else compare
    found = Validation(tuple(run(rows, seeds, jobs)))
    if out is not None:
        write_report(found.compared, Path(out))
    return found


def _text(value: Any) -> str:
    """Return a setting as it is written after `--set`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
