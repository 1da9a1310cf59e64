"""Times of the kernels of a GPU: calibrated from measurements, or estimated from its peaks."""
