"""A mixture of experts in MXFP4 for few rows: choice of experts, and the two products of each. `launchers.py`
launches its kernels.

packing.py         a checkpoint's matrices in the order in which the products read them, and back
expert_config.py   division of the work of the two products
route.cu           the router's logits, and the rows that experts multiply
expert_gate_up.cu  gate and up of every chosen expert, and their clamped SwiGLU
expert_down.cu     the second product, and the weighted sum over a row's experts

Headers: `routing.cuh` (the largest logits, and each expert's rows in row groups of eight), `expert_ring.cuh` (weights
on their way), `expert_matmul.cuh` (what both products share), `fp16.cuh` (float16, and four-bit numbers as such).
"""
