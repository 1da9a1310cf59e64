"""KV memory of a request where vLLM gives layers with a sliding window groups of blocks of their own.

A pure count, by the rules of vLLM 0.33's planner (`get_kv_cache_groups`, `SlidingWindowSpec`). The simulated pool does
not work so: it holds the whole context in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.specs.model import ModelSpec

#: A larger kind of layers that is not this much larger than the smaller one is one group, padded.
_ONE_GROUP_BELOW = 1.5


@dataclass(frozen=True, slots=True)
class KvGroups:
    """The groups of a model's layers. A block holds `layers` layers of `block_size` tokens for one group.

    `full` groups hold the whole context, `windowed` ones what the `window` needs.
    """

    layers: int
    full: int
    windowed: int
    window: int
    block_size: int

    def blocks(self, tokens: int, in_flight: int = 1) -> int:
        """Blocks that a request of `tokens` holds while up to `in_flight` of its tokens are computed at once: 1 is a
        decode, and vLLM's check at start takes the token budget of a step (of two, if it schedules asynchronously)."""
        whole = -(-tokens // self.block_size)
        if not self.windowed:
            return self.full * whole
        seen = min(self.window - 1 + in_flight, tokens)
        return self.full * whole + self.windowed * (-(-seen // self.block_size) + 1)


def layer_groups(model: ModelSpec, block_size: int) -> KvGroups:
    """Return vLLM's groups of the layers of `model`: as many to a group as the smaller kind has, the last one padded.

    With attention in chunks it holds the whole context in all layers, unless an environment variable says otherwise.
    """
    if model.chunked_attention or not model.window_layers:
        return KvGroups(model.layers, 1, 0, 0, block_size)
    kinds = [count for count in (model.full_layers, model.window_layers) if count]
    least, most = min(kinds), max(kinds)
    layers = most if most < _ONE_GROUP_BELOW * least else least
    full, windowed = -(-model.full_layers // layers), -(-model.window_layers // layers)
    return KvGroups(layers, full, windowed, model.sliding_window, block_size)
