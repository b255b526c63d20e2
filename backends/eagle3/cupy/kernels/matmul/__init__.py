"""The product of few rows with a weight.

matmul_rows.py  launches `matmul_rows.cu`, whose header `weight_ring.cuh` brings the weights, and beyond 16 rows
                `matmul_many.cu`; both have the other headers. `maxima_rows.cu` and `maxima_many.cu` are these with
                `largest_of_eight.cuh`: for a tree's next tokens
gemm_config.py  how its work on a weight is divided, and how k is split for both
many_config.py  how the work of `matmul_many.cu` is divided
"""
