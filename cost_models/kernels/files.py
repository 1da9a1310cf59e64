"""Paths of the calibrated files of GPUs."""

from __future__ import annotations

from pathlib import Path

from cost_models.files.user_files import own_files
from cost_models.specs.gpu import GpuSpec

_FOLDER = Path(__file__).resolve().parents[1] / "calibrated"


def calibrated_path(gpu: GpuSpec) -> Path:
    """Return the path of a GPU's calibrated file: the user's own (`own_files`) if it exists, else that of the shipped
    one."""
    own = own_files("calibrated")
    return own.get(gpu.name) or own.get(gpu.calibrated_as) or shipped_path(gpu)


def shipped_path(gpu: GpuSpec) -> Path:
    """Return the path of the shipped calibrated file of a GPU, whether or not it exists."""
    return _FOLDER / f"{gpu.calibrated_as}.json"
