"""The CUDA kernels: one `.cu` each, launched by the `launchers.py` of their folder, and headers in `include/`.

Of this package, nothing here imports anything from outside this folder but `device.py`.

    loader.py       launches of the functions of a `.cu` file, and a listener to them
    checked.py      launches whose operands are checked once
    operands.py     what a kernel takes: fields of its struct, and the shapes beside them
    arrays.py       dataclasses of tensors, each declared with its dtype and shape
    compiling.py    kernels compiled side by side, in processes
    heads.py        the sizes of an attention layer and its cache
    state/          the state of slots and of the cache's blocks, and the kernels that keep it
    matmul/         out = x · weightᵀ for few rows
    attention/      attention over the paged cache
    experts/        a mixture of experts in MXFP4
    sampling/       drawing tokens from rows of logits
    penalties/      what a text has of each token, and penalties on it
    rejection/      verifying drafts by rejection
    trees/          draft trees: candidates, tokens, acceptance, compaction
    partial/        verification over a part of the cache
    prefill/        what stands between the products and the attention of a prefill
    peers/          sums and choices of several GPUs that share a target
    rows/           kernels that gather, embed and pack rows between products
    read_memory.py  reads the memory as fast as it goes; no step launches it (`read_memory.cu`)
    include/        what several kernels share: `.cuh` headers
"""
