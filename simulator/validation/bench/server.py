"""The server of a `vllm bench serve` result: settings that the file does not have are options, else vLLM's defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models import load_gpu, load_host, load_model
from simulator.errors import InputError, did_you_mean
from simulator.scenario.lengths import Lengths
from simulator.scenario.schedulers import VERSIONS
from simulator.validation.setting import Load, Row, Setting

#: Settings of a server that `--set` takes, with their defaults; None: as vLLM sets it. `input_cv` and `output_cv` are
#: the spread of lengths (standard deviation / mean) of a result without its requests.
OPTIONS: dict[str, Any] = {
    "version": "vllm-0.33",
    "weights": "auto",
    "kv_cache": "auto",
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "max_model_len": None,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": None,
    "async_scheduling": None,
    "host": "vllm",
    "input_cv": None,
    "output_cv": None,
}
#: Options that describe the server's batches and memory. If they are not given, an assumption names them.
_NAMED = ("version", "kv_cache", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
_WHOLE = ("tensor_parallel", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
_FLAGS = ("enable_prefix_caching", "async_scheduling")
_FORMATS = {
    "weights": ("auto", "bf16", "fp16", "fp8", "int8"),
    "kv_cache": ("auto", "bf16", "fp16", "fp8"),
    "version": tuple(VERSIONS),
}
_MOST = 10**9
#: The range of options that are numbers.
_NUMBERS = {"gpu_memory_utilization": (0.01, 1.0), "input_cv": (0.0, 10.0), "output_cv": (0.0, 10.0)}


@dataclass(frozen=True, slots=True)
class Server:
    """A server of vLLM: `model` and `gpu` as given, their shipped names, and the values of all `OPTIONS`."""

    model: str
    gpu: str
    model_name: str
    gpu_name: str
    tensor_parallel: int
    options: Mapping[str, Any]
    assumed: tuple[str, ...]

    def setting(self, prompts: Lengths, outputs: Lengths, load: Load) -> Setting:
        """Return the setting of the server under a load."""
        options = self.options
        return Setting(
            engine="vllm",
            version=options["version"],
            model=self.model_name,
            gpu=self.gpu_name,
            tensor_parallel=self.tensor_parallel,
            weights=options["weights"],
            kv_cache=options["kv_cache"],
            max_num_seqs=options["max_num_seqs"],
            max_num_batched_tokens=options["max_num_batched_tokens"],
            max_model_len=options["max_model_len"],
            gpu_memory_utilization=options["gpu_memory_utilization"],
            prefix_caching=options["enable_prefix_caching"],
            async_scheduling=options["async_scheduling"],
            host=options["host"],
            front_end=True,
            prompt_tokens=prompts,
            output_tokens=outputs,
            prompt_pool=None,
            load=load,
        )

    def row(self, path: str, measured: dict[str, float], setting: Setting, assumed: Sequence[str]) -> Row:
        """Return the measured row of the file at `path`, or of the part of it that `path` names."""
        return Row(
            where=path,
            run=path,
            stage=0,
            staged=False,
            labels={"gpu": self.gpu, "model": self.model, "engine": "vllm"},
            measured=measured,
            setting=setting,
            assumptions=("prompts share no prefixes", *self.assumed, *assumed),
            own=True,
        )


def server_of(path: Path, data: Mapping[str, Any], given: Mapping[str, str]) -> Server:
    """Return the server of a result: `given` may have `gpu`, `model`, `tensor_parallel` and the names of `OPTIONS`.

    Raises:
        InputError: the model or the GPU is unknown or missing, or the value of an option is not valid.
    """
    options = {name: _value(name, given[name]) if name in given else default for name, default in OPTIONS.items()}
    model, gpu = given.get("model") or data.get("model_id"), given.get("gpu")
    if not isinstance(model, str):
        raise InputError(f"{path}: model_id: missing; give the model with --model")
    if gpu is None:
        raise InputError(f"{path}: a result of `vllm bench serve` does not name its GPU: give --gpu")
    try:
        names = load_model(model).name, load_gpu(gpu).name
        load_host(options["host"], names[1])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    tensor_parallel = _value("tensor_parallel", given.get("tensor_parallel", "1"))
    unsaid = [name for name in _NAMED if name not in given]
    assumed = [f"vLLM's defaults for {', '.join(unsaid)} (--set)"] if unsaid else []
    if "tensor_parallel" not in given:
        assumed.append("one GPU (--tensor-parallel)")
    return Server(model, gpu, *names, tensor_parallel, options, tuple(assumed))


def _value(name: str, text: str) -> Any:
    """Return the value of an option from its text. Raises InputError, which names the option."""
    if name in _FORMATS:
        if text not in _FORMATS[name]:
            raise InputError(f"{name}: unknown value {text!r}{did_you_mean(text, _FORMATS[name])}")
        return text
    if name in _FLAGS:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{name}: expected true or false, found {text!r}")
        return text.lower() == "true"
    if name in _WHOLE:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST:
            raise InputError(f"{name}: expected a whole number from 1 to {_MOST:,}, found {text!r}")
        return int(text)
    if name in _NUMBERS:
        return _number(name, text)
    return text


def _number(name: str, text: str) -> float:
    least, most = _NUMBERS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InputError(f"{name}: expected a number from {least:g} to {most:g}, found {text!r}")
    return value
