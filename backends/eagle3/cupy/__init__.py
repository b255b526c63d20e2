"""The built-in EAGLE-3 engine: CUDA kernels of its own, whole cycles in CUDA graphs, all state on the device.

From top to bottom; each part imports only from parts below it.

    backend.py   the door through which the harness comes in
    tuning/      the search for the configurations of matrix products
    bench/       every kernel of a step timed and checked by itself, and the memory's read bandwidth
    engine/      open a pair, prefill its prompts, decode from them
    step/        one cycle: reserve, draft, verify, accept, commit
    memory/      what lies in the GPU's memory: sizes, weights, buffers, the layout of the cache
    tuned/       configurations that a search has found, and their look-up at run time
    kernels/     one `.cu` and one Python launcher of the same name per kernel
    stream.py    one CUDA stream for torch and CuPy alike, and NVTX ranges around launches
    device.py    which GPU is used, and what its limits are
"""
