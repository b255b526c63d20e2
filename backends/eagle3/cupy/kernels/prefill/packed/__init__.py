"""Products of experts for few rows of prompts, of weights as they are packed. Each has a `.cu` of the same name.

packed_products.py     division of the work of both
packed_products.cuh    shared by both: requests, and the sums over k
prefill_row_groups.py  pairs of rows and experts, sorted by their expert and cut into row groups
prefill_gate_up.py     gate and up, with biases and the clamped SwiGLU
prefill_down.py        down
row_group.cuh          a row group
"""
