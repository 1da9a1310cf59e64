"""Transfers of KV: between prefill and decode replicas, over links, and from CPU memory."""
