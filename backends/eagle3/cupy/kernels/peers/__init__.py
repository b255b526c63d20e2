"""Exchanges within a step between the GPUs that share a target. `launchers.py` launches its kernels.

all_reduce.cu       sums of all GPUs' parts of a product, onto the residual stream
combine_choices.cu  the best of all GPUs' choices, and whether all read the same tokens

How a number passes from GPU to GPU is in `peer_words.cuh`.
"""
