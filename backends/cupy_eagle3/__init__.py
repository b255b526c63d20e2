"""The built-in EAGLE-3 engine: CUDA kernels of our own, whole cycles in CUDA graphs, all state on the device."""
