"""Exchanges within a step between the GPUs that share a target.

all_reduce.py       launches `all_reduce.cu`: sums of all GPUs' parts of a product, onto the residual stream
combine_choices.py  launches `combine_choices.cu`: the best of all GPUs' choices, and whether all read the same tokens
mailboxes.py        where a GPU's peers write to, and which exchange it is

How a number passes from GPU to GPU is in `peer_words.cuh`.
"""
