"""Products of experts for few rows of prompts, of weights as they are packed. `launchers.py` launches them.

packed_products.cuh    shared by both: requests, and the sums over k
prefill_row_groups.cu  pairs of rows and experts, sorted by their expert and cut into row groups
prefill_gate_up.cu     gate and up, with biases and the clamped SwiGLU
prefill_down.cu        down
row_group.cuh          a row group
"""
