"""The laws of operators: a physical base, and a table of what measured kernels take above it."""
