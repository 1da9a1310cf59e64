"""Specifications of GPUs, models, hosts and number formats, from which costs are computed."""
