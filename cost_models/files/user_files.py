"""The user's own calibrations, host models and GPUs: files in a folder of theirs, found by name as shipped ones are.

calibrated/GPU.json     what `servesim calibrate --gpu` wrote
hosts/NAME.yaml         what `servesim calibrate --bench` wrote, or a copy of a shipped one
hardware/GPU.yaml       a GPU that is not shipped
"""

from __future__ import annotations

import os
from pathlib import Path

_SUFFIXES = {"calibrated": ".json", "hosts": ".yaml", "hardware": ".yaml"}


def own_folder() -> Path:
    """`$SERVESIM_HOME` if that is set, else `servesim` in `$XDG_CONFIG_HOME`, which is `~/.config` unless set."""
    home = os.environ.get("SERVESIM_HOME")
    if home:
        return Path(os.path.expanduser(home))
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    return Path(os.path.expanduser(config)) / "servesim"


def own_files(kind: str) -> dict[str, Path]:
    """The user's files of a kind ("calibrated", "hosts" or "hardware") by name, in the order of names; none where the
    folder is not there or cannot be read."""
    folder, suffix = own_folder() / kind, _SUFFIXES[kind]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    return {name.removesuffix(suffix): folder / name for name in names if name.endswith(suffix)}
