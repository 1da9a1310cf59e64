"""Measurements of `python -m cost_models.profile_kernels`: shapes, order and timing. Only kernels need PyTorch."""
