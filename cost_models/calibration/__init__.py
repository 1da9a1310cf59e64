"""Measured kernel timings, and the laws fitted to them."""
