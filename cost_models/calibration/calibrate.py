"""Calibration of a GPU: from measured kernels to the document of its calibrated file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cost_models.calibration.families import FAMILIES, Family, Sources
from cost_models.calibration.fitted import TooFewRowsError
from cost_models.calibration.measurements import read_measurements
from cost_models.errors import CostModelError
from cost_models.library import load_gpu

PACKAGE = "aiconfigurator-core"
_MODULE = "aiconfigurator_core"
#: Other names of a GPU: first the package's, then those of published CSV files.
_NAMES = {
    "a100-sxm-80gb": ("a100_sxm", "a100", "a800"),
    "h100-sxm": ("h100_sxm", "h100"),
    "h200-sxm": ("h200_sxm", "h200"),
    "l40s": ("l40s",),
}
#: The folder of each GPU in the package.
PACKAGE_NAMES = {name: others[0] for name, others in _NAMES.items()}
_LICENCE = "fitted to timings that aiconfigurator-core publishes under Apache-2.0 (NVIDIA), and to the files named"
#: Most numbers on a line of a long list.
_NUMBERS_A_LINE = 16


class Kept(NamedTuple):
    """A group that was not fitted, and the reason."""

    operator: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """The document of a calibrated file, and the groups in it that were not fitted now."""

    document: dict[str, Any]
    kept: tuple[Kept, ...]


def calibrated_name(gpu: str) -> str:
    """Return the shipped name of a GPU that `gpu` names here, by its driver, or in the package.

    Raises CostModelError for other names.
    """
    normal = gpu.lower().replace("_", "-").replace(" ", "-")
    for name, others in _NAMES.items():
        if normal in (name, *(other.replace("_", "-") for other in others)):
            return name
    return load_gpu(gpu).name


def calibrate(
    gpu: str,
    sources: Sequence[str | Path] = (PACKAGE,),
    before: Mapping[str, Any] | None = None,
    families: Iterable[Family] = FAMILIES,
) -> Calibration:
    """Fit every operator of `gpu` that the sources measured.

    Args:
        gpu: a shipped name, or the package's.
        sources: "aiconfigurator", or paths of CSV files (see `measurements`); a file's groups replace the package's.
        before: an earlier document of this GPU, whose other operators are kept.

    Raises CostModelError for an unknown GPU, a source that cannot be read, a package that is not installed, and if
    nothing could be fitted.
    """
    name = calibrated_name(gpu)
    spec, found = load_gpu(name), _sources(name, sources)
    operators = {family: dict(groups) for family, groups in (before or {}).get("operators", {}).items()}
    kept, fitted = [], 0
    for family in families:
        for group, fit in family.fits(found).items():
            try:
                operators.setdefault(family.name, {})[group] = fit(spec).to_json()
                fitted += 1
            except TooFewRowsError as error:
                kept.append(Kept(family.name, group, str(error)))
    if not fitted:
        reasons = "; ".join(keeping.reason for keeping in kept) or f"no timings of {name}"
        raise CostModelError(f"nothing to calibrate: {reasons}")
    document = {
        "gpu": name,
        "created_from": {PACKAGE: metadata.version(PACKAGE)} if found.root else (before or {}).get("created_from", {}),
        "licence": _LICENCE,
        "operators": {family: operators[family] for family in sorted(operators) if operators[family]},
    }
    return Calibration(document, tuple(kept))


def write_calibrated(document: Mapping[str, Any], path: Path) -> None:
    """Write the document, as a whole or not at all; equal documents give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(_text(document, "") + "\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _sources(name: str, sources: Sequence[str | Path]) -> Sources:
    root, files = None, dict[str, list[pd.DataFrame]]()
    for source in sources:
        if str(source) in (PACKAGE, "aiconfigurator"):
            root = package_root()
            continue
        for operator, rows in read_measurements(Path(source), (name, *_NAMES.get(name, ()))).items():
            files.setdefault(operator, []).append(rows)
    joined = {operator: pd.concat(parts, ignore_index=True) for operator, parts in files.items()}
    return Sources(root, _NAMES[name][0] if name in _NAMES else None, joined)


def package_root() -> Path:
    """Return the folder `systems/data` of aiconfigurator-core.

    Raises CostModelError if the package, or pyarrow, is not installed.
    """
    found = util.find_spec(_MODULE)
    if found is None or found.origin is None or util.find_spec("pyarrow") is None:
        raise CostModelError("the measured timings are not installed; run: pip install 'servesim[calibrate]'")
    return Path(found.origin).parent / "systems" / "data"


def _text(value: Any, indent: str) -> str:
    """Return JSON with a line for each key, for each short list, and for every 16 numbers of a longer list."""
    deeper = indent + " "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(key)}: {_text(entry, deeper)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if not isinstance(value, list) or (len(value) <= _NUMBERS_A_LINE and not any(map(_nested, value))):
        return json.dumps(value)
    if any(map(_nested, value)):
        lines = [deeper + _text(entry, deeper) for entry in value]
    else:
        starts = range(0, len(value), _NUMBERS_A_LINE)
        lines = [deeper + json.dumps(value[start : start + _NUMBERS_A_LINE])[1:-1] for start in starts]
    return "[\n" + ",\n".join(lines) + f"\n{indent}]"


def _nested(value: Any) -> bool:
    return isinstance(value, list | Mapping)
