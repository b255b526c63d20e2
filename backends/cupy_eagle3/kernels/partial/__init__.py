"""Kernels of verification over a part of the cache (SpecPV). Each has a `.cu` of the same name.

kept.py             which part: how many blocks are kept, and how many positions that makes at most
wide_attention.py   attention of a full verification, of many rows; it leaves the newest queries
block_bounds.py     the largest and smallest keys of blocks
block_scores.py     how well the newest queries may like each block
choose_blocks.py    the blocks of the largest scores
accept_replayed.py  acceptance of a full verification, and what it says of the tokens that it ran again

Attention of a partial verification is `attention.cu`, with `attention/kept_blocks.cuh`. `middle.cuh`: which blocks are
neither sink nor window.
"""
