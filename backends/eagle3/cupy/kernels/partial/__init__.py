"""Kernels of verification over a part of the cache (SpecPV). `launchers.py` launches them.

wide_attention.cu   attention of a full verification, of many rows; it leaves the newest queries
block_bounds.cu     the largest and smallest keys of blocks
block_scores.cu     how well the newest queries may like each block
choose_blocks.cu    the blocks of the largest scores
accept_replayed.cu  acceptance of a full verification, and what it says of the tokens that it ran again

Attention of a partial verification is `attention.cu`, with `attention/kept_blocks.cuh`; which part it reads says
`attention/kept_blocks.py`. `middle.cuh`: which blocks are neither sink nor window.
"""
