"""Batches: the sequences of an engine core, and how a plan advances them."""
