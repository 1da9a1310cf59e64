"""Reader of the experts of a model from its `config.json`, by the key names of the different model families."""

from __future__ import annotations

from cost_models.files.fields import Fields
from cost_models.specs.model import Moe

_COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "n_experts")
_TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "moe_top_k"),
    "num_selected_experts",
)
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
#: Width of all shared experts together, and of each.
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
_SHARED_EACH = "moe_shared_expert_intermediate_size"
#: Keys of the period of layers with experts: the last layer of each period has them, or the first.
_LAST_OF_PERIOD = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
_FIRST_OF_PERIOD = "moe_layer_freq"
_FIRST_SPARSE = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
_LISTS = ("moe_layers", "moe_layers_enum")
_DENSE_LIST, _LAST_SPARSE = "mlp_only_layers", "moe_layer_end_index"
#: Every key that is read here.
KEYS = frozenset(
    [*_COUNT, *_TOP_K, *_WIDTH, *_SHARED, *_SHARED_WIDTH, _SHARED_EACH, *_LAST_OF_PERIOD, _FIRST_OF_PERIOD]
).union(_FIRST_SPARSE, _LISTS, [_DENSE_LIST, _LAST_SPARSE])


def says_dense(fields: Fields) -> bool:
    """Return whether the file has the key of the number of experts, with the value for none."""
    return any(fields.has(key) for key in _COUNT) and _uniform(fields, *_COUNT)[1] < 2


def experts_of(fields: Fields, layers: int) -> Moe | None:
    """Return the mixture of experts of a model of that many layers; None if it has none."""
    key, experts = _uniform(fields, *_COUNT)
    if experts < 2:
        return None
    top_key, top_k = _uniform(fields, *_TOP_K)
    _, width = _uniform(fields, *_WIDTH)
    for names, found in ((_TOP_K, top_k), (_WIDTH, width)):
        if not found:
            raise fields.error(names[0], f"missing (or {', '.join(names[1:])})")
    if top_k > experts:
        raise fields.error(top_key, f"{top_k} is more than the {experts} experts of {key}")
    sparse = sparse_layers(fields, layers)
    dense = layers - len(sparse)
    shared = _shared_width(fields, width)
    return Moe(
        experts=experts,
        top_k=top_k,
        moe_ffn=width,
        shared_experts=shared // width if shared % width == 0 else 1,
        first_k_dense=dense,
        shared_ffn=shared if shared % width else 0,
        interleaved=dense > 0 and min(sparse, default=layers) != dense,
    )


def sparse_layers(fields: Fields, layers: int) -> set[int]:
    """Return the layers that have experts, if the model has any."""
    sparse = _listed(fields, layers)
    if sparse is None:
        sparse = _periodic(fields, layers)
    key, only_dense = fields.value(_DENSE_LIST)
    return sparse if only_dense is None else sparse - set(_numbers(fields, key, only_dense, layers))


def _shared_width(fields: Fields, width: int) -> int:
    together, number = _uniform(fields, *_SHARED_WIDTH)[1], _uniform(fields, *_SHARED)[1]
    return together or (_uniform(fields, _SHARED_EACH)[1] or width) * number


def _listed(fields: Fields, layers: int) -> set[int] | None:
    """Return the layers with experts if the file lists them: by number, or as a 1 for each."""
    key, found = fields.value(*_LISTS)
    if found:
        return set(_numbers(fields, key, found.split(",") if isinstance(found, str) else found, layers))
    _, frequency = fields.value(_FIRST_OF_PERIOD)
    if not isinstance(frequency, list):
        return None
    if len(frequency) != layers:
        raise fields.error(_FIRST_OF_PERIOD, f"expected {layers} entries, one a layer, found {len(frequency)}")
    return {number for number, has in enumerate(frequency) if has}


def _periodic(fields: Fields, layers: int) -> set[int]:
    """Return the layers with experts by their period, from the first possible layer to the last."""
    first = max(fields.integer(name, default=0, least=0) for name in _FIRST_SPARSE)
    last = fields.integer(_LAST_SPARSE, default=-1, least=-1)
    found = set(range(first, layers if last == -1 else min(last + 1, layers)))
    for key in (*_LAST_OF_PERIOD, _FIRST_OF_PERIOD):
        period = fields.integer(key, default=1, least=0) or 1
        at = 0 if key == _FIRST_OF_PERIOD else period - 1
        found = {number for number in found if number % period == at}
    return found


def _numbers(fields: Fields, key: str, found: object, layers: int) -> list[int]:
    try:
        numbers = [int(number) for number in found]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise fields.error(key, "expected a list of layers, numbered from 0") from None
    if any(not 0 <= number < layers for number in numbers):
        raise fields.error(key, f"expected layers from 0 to {layers - 1}")
    return numbers


def _uniform(fields: Fields, *keys: str) -> tuple[str, int]:
    """Return (key, integer), 0 if there is none. A list with one entry per layer must have equal entries."""
    key, found = fields.value(*keys)
    if not isinstance(found, list):
        return key, fields.integer(*keys, default=0, least=0)
    if len(set(map(str, found))) != 1 or type(found[0]) is not int or found[0] < 0:
        raise fields.error(key, "a model whose layers have different experts is not supported; expected one integer")
    return key, found[0]
