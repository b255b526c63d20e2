"""The product of few rows with a weight.

matmul_rows.py  launches `matmul_rows.cu`, whose header `weight_ring.cuh` brings the weights
gemm_config.py  how its work on a weight is divided
"""
