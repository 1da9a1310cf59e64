"""Measured runs of speculative decoding: reading, simulating and judging them."""
