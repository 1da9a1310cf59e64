"""Specifications that the cost of a step depends on: GPUs, models, hosts and number formats."""
