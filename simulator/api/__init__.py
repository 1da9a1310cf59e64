"""The public Python API, `simulator.NAME`: one module a subject, so that each imports no more than it needs."""
