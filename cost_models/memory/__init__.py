"""Bytes of weights, KV cache and activations, and the KV blocks that fit beside them."""
