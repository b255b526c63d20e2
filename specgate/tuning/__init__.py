"""What is searched and timed for an engine before anything is measured: products, attention, kernels."""
