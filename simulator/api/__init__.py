"""The public Python API, `simulator.NAME`; each module imports only what its functions need."""
