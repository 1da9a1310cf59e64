"""What `python -m cost_models.profile_kernels` measures, in which order, and how. Only its kernels need PyTorch."""
