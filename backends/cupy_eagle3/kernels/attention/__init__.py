"""Attention over the paged cache.

attention.py    launches `attention.cu`; its headers are `kv_ring.cuh` (keys and values on their way) and `rope.cuh`
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
