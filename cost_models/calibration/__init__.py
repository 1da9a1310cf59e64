"""Computation of a calibrated file from measured kernels: reading, checks against physics, fits, tests on held-out
shapes."""
