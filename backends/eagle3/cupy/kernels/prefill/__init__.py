"""Kernels of a prefill: all that stands between its products and its attention. Each has a `.cu` of the same name.

They work on whole rows of a prompt, of which there are thousands, and move each row through memory once.

prefill_stream.py  the residual stream: embedded or added to, and normed
prefill_heads.py   queries and keys rotated, keys and values into the paged cache (cached/: into one in E4M3 or NVFP4)
prefill_gate.py    SiLU(gate) · up
prefill_draft.py   the draft's input
prefill_route.py   the experts of each row, and their weights
prefill_decode.py  matrices of experts in MXFP4, decoded to bfloat16
prefill_swiglu.py  the clamped SwiGLU of experts
prefill_mixture.py the weighted sum of a row's experts into the stream, and its next norm
packed/            products of experts for few rows, of weights as they are packed
clamped_swiglu.cuh the clamped SwiGLU of one gate and up
threads.py         how many threads a row is divided among
eights.cuh         a row in groups of eight elements
"""
