"""Attention over the paged cache.

attention.py    launches `attention.cu`; its headers are `kv_ring.cuh` (keys and values on their way), `kv_bf16.cuh`,
                `kv_fp8.cuh` and `kv_nvfp4.cuh` (what differs between the formats of the cache), `kv_rows.cuh` and
                `kv_codes.cuh` (what the first two and the last two share), `piece_products.cuh` (products of a key
                tile), `rope.cuh`, `chain_rows.cuh` or
                `nodes/` (rows of a chain, nodes of a tree), `whole_cache.cuh` or `kept_blocks.cuh` (how much of
                the cache rows look at) and `join_chunks.cuh` (few chunks of a row)
kept_blocks.py  the part of a cache that is read, and the most positions that it has
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
