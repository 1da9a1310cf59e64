"""Calibrations: kernels of a GPU from measurements, and a host model from a benchmark of a server."""
