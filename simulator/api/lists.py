"""What is built in, by name."""

from __future__ import annotations

from cost_models import gpu_names, model_names
from simulator.data import scenario_names


def list_gpus() -> list[str]:
    """The GPUs that a pool's `gpu` may name."""
    return gpu_names()


def list_models() -> list[str]:
    """The models that `model` may name, beside the path of a Hugging Face `config.json`."""
    return model_names()


def list_scenarios() -> list[str]:
    """The shipped scenarios, which `run` and the others take by name."""
    return scenario_names()
