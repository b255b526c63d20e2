"""Attention over the paged cache.

attention.py    launches `attention.cu`; its headers are `kv_ring.cuh` (keys and values on their way), `kv_bf16.cuh`,
                `kv_fp8.cuh` and `kv_nvfp4.cuh` (what differs between the formats of the cache), `kv_codes.cuh` (what
                the last two share), `rope.cuh`, `tree_rows.cuh` (rows that are nodes of a tree), `kept_blocks.cuh`
                (rows that look at a part of the cache) and `join_chunks.cuh` (few chunks of a row)
kept.py         which part of a cache is read, and how many positions that makes at most
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
