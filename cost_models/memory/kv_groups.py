"""KV memory of a request in vLLM, where layers with a sliding window have separate groups of blocks.

The count follows vLLM 0.33's planner (`get_kv_cache_groups`, `SlidingWindowSpec`). The simulated pool is different: it
holds the whole context in all layers.
"""

from __future__ import annotations

from typing import NamedTuple

from cost_models.specs.model import ModelSpec

#: If the larger kind of layers is less than this many times as large as the smaller one, all are one padded group.
_ONE_GROUP_BELOW = 1.5


class KvGroups(NamedTuple):
    """The groups of a model's layers. A block holds `layers` layers of `block_size` tokens for one group.

    `full` groups hold the whole context, `windowed` groups only the tokens in the `window`.
    """

    layers: int
    full: int
    windowed: int
    window: int
    block_size: int

    def blocks(self, tokens: int, in_flight: int = 1) -> int:
        """Return the blocks of a request of `tokens` while up to `in_flight` of its tokens are computed at once.

        A decode has 1; vLLM's check at start assumes the token budget of a step (of two, with asynchronous scheduling).
        """
        whole = -(-tokens // self.block_size)
        if not self.windowed:
            return self.full * whole
        seen = min(self.window - 1 + in_flight, tokens)
        return self.full * whole + self.windowed * (-(-seen // self.block_size) + 1)


def layer_groups(model: ModelSpec, block_size: int) -> KvGroups:
    """Return vLLM's groups of the layers of `model`: each as large as the smaller kind of layers, the last one padded.

    For attention in chunks vLLM holds the whole context in all layers, unless an environment variable changes that.
    """
    if model.chunked_attention or not model.window_layers:
        return KvGroups(model.layers, 1, 0, 0, block_size)
    kinds = [count for count in (model.full_layers, model.window_layers) if count]
    least, most = min(kinds), max(kinds)
    layers = most if most < _ONE_GROUP_BELOW * least else least
    full, windowed = -(-model.full_layers // layers), -(-model.window_layers // layers)
    return KvGroups(layers, full, windowed, model.sliding_window, block_size)
