"""Attention over the paged cache.

attention.py    launches `attention.cu`; its headers are `kv_ring.cuh` (keys and values on their way), `kv_bf16.cuh`,
                `kv_fp8.cuh` and `kv_nvfp4.cuh` (what differs between the formats of the cache), `kv_codes.cuh` (what
                the last two share), `rope.cuh`, `tree_rows.cuh` (rows that are nodes of a tree), `kept_blocks.cuh`
                (rows that look at a part of the cache) and `join_chunks.cuh` (few chunks of a row)
kept_blocks.py  the part of a cache that is read, and the most positions that it has
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
