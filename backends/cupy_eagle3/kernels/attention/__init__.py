"""Attention over the paged cache.

attention.py    launches `attention.cu`; its headers are `kv_ring.cuh` (keys and values on their way), `rope.cuh`
                and `tree_rows.cuh` (rows that are nodes of a tree)
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
