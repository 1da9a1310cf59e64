"""Names of built-in GPUs, models, scenarios and so on, and their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models import gpu_names, model_names
from simulator.api.boundary import boundary
from simulator.common.shipped import scenario_names
from simulator.errors import InputError, did_you_mean
from simulator.study.facts import KINDS

if TYPE_CHECKING:
    import pandas as pd


def list_gpus() -> list[str]:
    """Return the names that a pool's `gpu` accepts."""
    return gpu_names()


def list_models() -> list[str]:
    """Return the names that `model` accepts, beside the path of a Hugging Face `config.json`."""
    return model_names()


def list_scenarios() -> list[str]:
    """Return the names of the shipped scenarios, for `run`, `compare` and the others."""
    return scenario_names()


@boundary
def facts(kind: str) -> pd.DataFrame:
    """Return the facts that `servesim list KIND --json` prints, one row per name.

    `kind` is `gpus`, `models`, `hosts`, `schedulers`, `routers`, `proposers`, `acceptance`, `formats` or `scenarios`.

    Raises:
        InputError: the kind is not known.
    """
    if kind not in KINDS:
        raise InputError(f"{kind}: is not known{did_you_mean(str(kind), KINDS)}")
    import pandas as pd

    return pd.DataFrame(KINDS[kind]()).set_index("name")
