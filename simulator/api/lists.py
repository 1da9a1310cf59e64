"""What is built in: by name, and with its facts."""

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
    """The GPUs that a pool's `gpu` may name."""
    return gpu_names()


def list_models() -> list[str]:
    """The models that `model` may name, beside the path of a Hugging Face `config.json`."""
    return model_names()


def list_scenarios() -> list[str]:
    """The shipped scenarios, which `run` and the others take by name."""
    return scenario_names()


@boundary
def facts(kind: str) -> pd.DataFrame:
    """What is built in of one kind, one row a name, with the facts that `servesim list KIND --json` prints: of `gpus`,
    `models`, `hosts`, `schedulers`, `routers`, `proposers`, `acceptance`, `formats` or `scenarios`.

    Raises:
        InputError: the kind is not known.
    """
    if kind not in KINDS:
        raise InputError(f"{kind}: is no kind of what can be listed{did_you_mean(str(kind), KINDS)}")
    import pandas as pd

    return pd.DataFrame(KINDS[kind]()).set_index("name")
