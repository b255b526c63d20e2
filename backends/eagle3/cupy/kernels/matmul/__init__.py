"""The product of few rows with a weight.

matmul_rows.py  launches `matmul_rows.cu`, whose header `weight_ring.cuh` brings the weights, and beyond 16 rows
                `matmul_many.cu`, or `matmul_wgmma.cu` at any number; they share the other headers. `maxima_….cu` are
                these with `largest_of_eight.cuh`: for a tree's next tokens
gemm_config.py  how its work on a weight is divided, and how k is split for both
many_config.py  how the work of `matmul_many.cu` is divided
wgmma_config.py  how that of `matmul_wgmma.cu` is
"""
