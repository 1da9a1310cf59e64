"""From measured kernels to a calibrated file: read, check against physics, fit, test on held-out shapes."""
