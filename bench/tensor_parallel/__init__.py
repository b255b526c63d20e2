"""Several GPUs that share a target: what an exchange between them takes.

python -m bench.tensor_parallel exchange       the all-reduce alone, checked and timed, beside NCCL's
python -m bench.tensor_parallel shapes         the products of a split pair, for `specgate engine tune gemm --shapes`

`--pair planted-gpt-oss-20b` and `planted-gpt-oss-120b` are mixtures of experts, made from a seed.
"""
