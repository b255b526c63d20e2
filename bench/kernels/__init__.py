"""Kernels of the built-in engine by themselves, beside other ways to do the same in the same process.

python -m bench.kernels.many_rows        products of more than 16 rows
python -m bench.kernels.prefill_parts    every part of a prefill
"""
