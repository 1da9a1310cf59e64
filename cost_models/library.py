"""The models and GPUs that ship with the package, and models from a Hugging Face `config.json`."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cost_models.errors import CostModelError, shown, unknown
from cost_models.files.fields import Fields
from cost_models.files.nodes import read_yaml
from cost_models.files.user_files import own_files
from cost_models.specs.gpu import GpuSpec, gpu_from
from cost_models.specs.host import NO_HOST, HostModel, host_from
from cost_models.specs.model import Mla, ModelSpec, Moe

_HERE = Path(__file__).resolve().parent
_MODELS = _HERE / "models"
_HARDWARE = _HERE / "hardware"
_HOSTS = _HERE / "hosts"
_YAML = (".yaml", ".yml")

#: Parts of a name that do not affect a model's dimensions: the kind of tuning, and the format of the files.
_SAME_DIMENSIONS = ("base", "chat", "hf", "instruct")
#: Endings of the names of quantised checkpoints, and their format of weights. Other endings, such as NVFP4, are
#: unknown.
_FORMATS = (
    (r"(bf16|fp16)", None),
    (r"fp8(-(block|dynamic|kv|pertensor|static))*", "fp8"),
    (r"(quantized\.w8a8|w8a8|gptq-int8|int8)", "int8"),
    (r"(quantized\.w4a16|w4a16|(awq|gptq)(-int4)?|int4)", "int4"),
    (r"mxfp4", "mxfp4"),
)


def model_names() -> list[str]:
    """Return the names of the shipped models."""
    return _stems(_MODELS)


def gpu_names() -> list[str]:
    """Return the names of the shipped GPUs, and of the user's own (`own_files`)."""
    return sorted(_files(_HARDWARE))


def load_model(name_or_path: str) -> ModelSpec:
    """Load a model: by name, or from the path of a `config.json` or its folder.

    A name is a shipped one or a Hugging Face id, in any case; blanks may stand for dashes. An id may be that of a copy
    or of a tuned version whose name contains the model's full name ("Llama-3.1-8B-Instruct"), also with quantised
    weights ("-FP8", "-AWQ", "-quantized.w4a16"). Its format then becomes the model's `native_quant`, for all matrices
    of the layers, unless the shipped file has an entry for that owner's checkpoint with the modules that it leaves in
    BF16.

    Raises CostModelError for an unknown name, with similar names, and for a file that is not such a config.
    """
    name = name_or_path.lower().replace(" ", "-")
    if name in model_names():
        return _shipped(name)
    path = Path(name_or_path)
    config = path if path.suffix == ".json" else path / "config.json"
    if path.suffix == ".json" or os.path.isfile(config):
        from cost_models.huggingface.config import model_from_config

        return model_from_config(config)
    found = _named(name)
    if found is None:
        raise unknown("model (neither a shipped name nor the path of a config.json)", name_or_path, model_names())
    return found


def _named(name: str) -> ModelSpec | None:
    """Return the shipped model for a name that is not itself a shipped one; None if there is none."""
    known, checkpoints = _known_names()
    if _plain(name) in known:
        return _shipped(known[_plain(name)])
    if _owned(name) in checkpoints:
        return _stored_as(*checkpoints[_owned(name)])
    for ending, native in _FORMATS:
        match = re.fullmatch(rf"(.+?)-{ending}", name)
        if match and _plain(match[1]) in known:
            return dataclasses.replace(_shipped(known[_plain(match[1])]), native_quant=native, bf16_layers=())
    return None


@cache
def _known_names() -> tuple[Mapping[str, str], Mapping[str, tuple[str, str]]]:
    """Return the shipped models by plain name; and by owner and plain name, for published checkpoints that leave some
    modules in BF16, the shipped model with the checkpoint's key in its file."""
    known, checkpoints = {}, {}
    for shipped in model_names():
        fields = _read(_MODELS / f"{shipped}.yaml")
        for name in (shipped, *(fields.texts("aliases") or ()), *(fields.texts("hugging_face") or ())):
            known[_plain(name.lower())] = shipped
        section = fields.section("checkpoints")
        for key in section.names() if section is not None else ():
            checkpoints[_owned(key.lower())] = (shipped, key)
    return known, checkpoints


def _stored_as(shipped: str, checkpoint: str) -> ModelSpec:
    """Return the shipped model, with its weights stored as in that checkpoint."""
    fields = _read(_MODELS / f"{shipped}.yaml").required_section("checkpoints").required_section(checkpoint)
    layers = fields.required_section("bf16_layers")
    kept = tuple((module, layers.integer(module)) for module in layers.names())
    native = fields.text("native_quant")
    fields.text("source")
    fields.finish()
    return dataclasses.replace(_shipped(shipped), native_quant=native, bf16_layers=kept)


def _owned(name: str) -> str:
    """Return a name with its owner, without the parts that do not affect the dimensions."""
    return f"{name.rpartition('/')[0]}/{_plain(name)}"


def _plain(name: str) -> str:
    """Return a name without its owner and the parts that do not affect the dimensions."""
    parts = name.rpartition("/")[2].removeprefix("meta-").split("-")
    return "-".join(part for part in parts if part not in _SAME_DIMENSIONS)


def load_gpu(name_or_path: str) -> GpuSpec:
    """Load a GPU by name, or from the path of a hardware file (`.yaml`).

    A name is that of the user's own file or of a shipped one, or an alias in the file, such as the name that the driver
    reports. Case does not matter, and `_` or a blank may stand for `-`. Raises CostModelError with similar names.
    """
    file, name = _gpu_file(name_or_path)
    return gpu_from(_read(file), name)


def gpu_file(name_or_path: str) -> Path:
    """Return the hardware file of a GPU. Raises CostModelError as `load_gpu`."""
    return _gpu_file(name_or_path)[0]


def _gpu_file(name_or_path: str) -> tuple[Path, str]:
    """Return the hardware file of a GPU, and the GPU's name."""
    path = Path(name_or_path)
    if path.suffix in _YAML:
        return path, path.stem
    normal, files = _normal(name_or_path), _files(_HARDWARE)
    if normal in files:
        return files[normal], normal
    for known, file in files.items():
        if normal in map(_normal, _read(file).texts("names") or ()):
            return file, known
    raise _unknown_gpu(normal, list(files))


def _unknown_gpu(name: str, known: Sequence[str]) -> CostModelError:
    """Return the error about an unknown GPU. It is probably not a misspelt name, so the nearest GPUs are listed as
    such."""
    chip = name.partition("-")[0]
    if any(each.partition("-")[0] == chip for each in known):
        return unknown("GPU", name, known)
    nearest = sorted(known, key=lambda each: -difflib.SequenceMatcher(None, name, each).ratio())
    return CostModelError(
        f"unknown GPU {shown(name)}: it is not modelled; known, nearest first: {', '.join(nearest)}; "
        "or give the path of a hardware file"
    )


def is_shipped(path: Path) -> bool:
    """Return whether a file belongs to the package."""
    return _HERE in path.resolve().parents


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def load_host(name_or_path: str, gpu: str) -> HostModel:
    """Load a host model for a GPU: by name, "none", or from the path of a file that `servesim calibrate` wrote.

    A name is that of the user's own file (`own_files`) or of a shipped one. Raises CostModelError for an unknown name
    or a file that is not a host model.
    """
    if name_or_path == "none":
        return NO_HOST
    return host_from(_read(host_file(name_or_path)), gpu)


def host_file(name_or_path: str) -> Path:
    """Return the file of a host model. Raises CostModelError for an unknown name."""
    files = _files(_HOSTS)
    if name_or_path in files:
        return files[name_or_path]
    path = Path(name_or_path)
    if path.suffix in _YAML:
        return path
    raise unknown("host model (neither a known name nor the path of a .yaml file)", name_or_path, files)


def host_names() -> list[str]:
    """Return the names of the shipped host models, and of the user's own."""
    return sorted(_files(_HOSTS))


def host_engine(name: str) -> str:
    """Return the engine whose times the host model `name` has."""
    return _read(host_file(name)).text("engine")


def _shipped(name: str) -> ModelSpec:
    fields = _read(_MODELS / f"{name}.yaml")
    moe, mla = fields.section("moe"), fields.section("mla")
    fields.texts("aliases")
    fields.texts("hugging_face")
    fields.section("checkpoints")
    model = ModelSpec(
        name=name,
        layers=fields.integer("layers"),
        hidden=fields.integer("hidden"),
        heads=fields.integer("heads"),
        kv_heads=fields.integer("kv_heads"),
        head_dim=fields.integer("head_dim"),
        ffn=fields.integer("ffn"),
        vocab=fields.integer("vocab"),
        max_position=fields.integer("max_position"),
        tie_embeddings=fields.flag("tie_embeddings"),
        qkv_bias=fields.flag("qkv_bias"),
        qk_norm=fields.flag("qk_norm"),
        gated_ffn=fields.flag("gated_ffn", default=True),
        moe=None if moe is None else _moe(moe),
        mla=None if mla is None else _mla(mla),
        sliding_window=fields.integer("sliding_window", default=0),
        window_layers=fields.integer("window_layers", default=0),
        chunked_attention=fields.flag("chunked_attention", default=False),
        native_quant=fields.text("native_quant", default="") or None,
        mtp_layers=fields.integer("mtp_layers", default=0),
        source=fields.text("source"),
    )
    fields.finish()
    return model


def _moe(fields: Fields) -> Moe:
    moe = Moe(
        experts=fields.integer("experts"),
        top_k=fields.integer("top_k"),
        moe_ffn=fields.integer("moe_ffn"),
        shared_experts=fields.integer("shared_experts", least=0),
        first_k_dense=fields.integer("first_k_dense", least=0),
    )
    fields.finish()
    return moe


def _mla(fields: Fields) -> Mla:
    mla = Mla(
        q_lora_rank=fields.integer("q_lora_rank", least=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )
    fields.finish()
    return mla


def _read(path: Path) -> Fields:
    return Fields(str(path), read_yaml(path))


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a kind by name: shipped ones and the user's, which replace shipped ones of the same name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} | own_files(folder.name)


def _stems(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))
