"""Kernels of a prefill: all that stands between its products and its attention. `launchers.py` launches them.

They work on whole rows of a prompt, of which there are thousands, and move each row through memory once.

prefill_stream.cu  the residual stream: embedded or added to, and normed
prefill_heads.cu   queries and keys rotated, keys and values into the paged cache (cached/: into one in E4M3 or NVFP4)
prefill_gate.cu    SiLU(gate) · up
prefill_draft.cu   the draft's input
prefill_route.cu   the experts of each row, and their weights
prefill_decode.cu  matrices of experts in MXFP4, decoded to bfloat16
prefill_swiglu.cu  the clamped SwiGLU of experts
prefill_mixture.cu the weighted sum of a row's experts into the stream, and its next norm
packed/            products of experts for few rows, of weights as they are packed
clamped_swiglu.cuh the clamped SwiGLU of one gate and up
eights.cuh         a row in groups of eight elements
"""
