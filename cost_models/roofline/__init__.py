"""The roofline: the time of a step from the operators of a model and the kernels of a GPU."""
