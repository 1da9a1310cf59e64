"""The models and GPUs that ship with the package, and models from a Hugging Face `config.json`."""

from __future__ import annotations

from pathlib import Path

import yaml

from cost_models.errors import CostModelError, unknown
from cost_models.fields import Fields
from cost_models.gpu import GpuSpec, gpu_from
from cost_models.host import NO_HOST, HostModel, host_from
from cost_models.huggingface import model_from_config
from cost_models.model import Mla, ModelSpec, Moe

_HERE = Path(__file__).resolve().parent
_MODELS = _HERE / "models"
_HARDWARE = _HERE / "hardware"
_HOSTS = _HERE / "hosts"


def model_names() -> list[str]:
    """The shipped models."""
    return _stems(_MODELS)


def gpu_names() -> list[str]:
    """The shipped GPUs."""
    return _stems(_HARDWARE)


def load_model(name_or_path: str) -> ModelSpec:
    """A model: a shipped name or Hugging Face id, in any case, or the path of a `config.json` or its folder.

    Raises CostModelError for an unknown name, with the nearest ones, and for a file that is no such config.
    """
    name = name_or_path.lower()
    if name in model_names():
        return _shipped(name)
    path = Path(name_or_path)
    if path.suffix == ".json":
        return model_from_config(path)
    if (path / "config.json").is_file():
        return model_from_config(path / "config.json")
    if "/" in name:
        for known in model_names():
            if name in _hugging_face_ids(known):
                return _shipped(known)
    raise unknown("model (neither a shipped name nor the path of a config.json)", name_or_path, model_names())


def load_gpu(name: str) -> GpuSpec:
    """A GPU by shipped name, or by a name that its hardware file lists, such as that of the driver.

    Case does not matter, and `_` or a blank may stand for `-`. Raises CostModelError with the nearest names.
    """
    normal = _normal(name)
    for known in gpu_names():
        fields = _read(_HARDWARE / f"{known}.yaml")
        if normal == known or normal in map(_normal, fields.texts("names") or ()):
            return gpu_from(fields, known)
    raise unknown("GPU", normal, gpu_names())


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def load_host(name_or_path: str, gpu: str) -> HostModel:
    """A host model for a GPU: a shipped name, "none", or the path of a file that `servesim calibrate` wrote.

    Raises CostModelError for an unknown name or a file that is no host model.
    """
    if name_or_path == "none":
        return NO_HOST
    if name_or_path in host_names():
        return host_from(_read(_HOSTS / f"{name_or_path}.yaml"), gpu)
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return host_from(_read(path), gpu)
    raise unknown("host model (neither a shipped name nor the path of a .yaml file)", name_or_path, host_names())


def host_names() -> list[str]:
    """The shipped host models."""
    return _stems(_HOSTS)


def _shipped(name: str) -> ModelSpec:
    fields = _read(_MODELS / f"{name}.yaml")
    moe, mla = fields.section("moe"), fields.section("mla")
    fields.texts("hugging_face")
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
        moe=None if moe is None else _moe(moe),
        mla=None if mla is None else _mla(mla),
        sliding_window=fields.integer("sliding_window", default=0),
        window_layers=fields.integer("window_layers", default=0),
        native_quant=fields.text("native_quant", default="") or None,
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


def _hugging_face_ids(name: str) -> set[str]:
    ids = _read(_MODELS / f"{name}.yaml").texts("hugging_face") or ()
    return {identifier.lower() for identifier in ids}


def _read(path: Path) -> Fields:
    try:
        return Fields(path.name, yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise CostModelError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def _stems(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))
