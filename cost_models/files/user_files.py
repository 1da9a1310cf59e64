"""The user's own calibrations, host models and GPUs, in a folder of the user, found by name like shipped ones.

calibrated/GPU.json   written by `servesim calibrate --gpu`
hosts/NAME.yaml       written by `servesim calibrate --bench`, or a copy of a shipped one
hardware/GPU.yaml     a GPU that is not shipped
"""

from __future__ import annotations

import os
from pathlib import Path

_SUFFIXES = {"calibrated": ".json", "hosts": ".yaml", "hardware": ".yaml"}


def own_folder() -> Path:
    """Return the user's folder: `$SERVESIM_HOME`, else `servesim` in `$XDG_CONFIG_HOME`, which is `~/.config` by
    default."""
    home = os.environ.get("SERVESIM_HOME")
    if home:
        return Path(os.path.expanduser(home))
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    return Path(os.path.expanduser(config)) / "servesim"


def own_files(kind: str) -> dict[str, Path]:
    """Return the user's files of a kind ("calibrated", "hosts" or "hardware") by name, sorted; {} if the folder cannot
    be read."""
    folder, suffix = own_folder() / kind, _SUFFIXES[kind]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    return {name.removesuffix(suffix): folder / name for name in names if name.endswith(suffix)}
