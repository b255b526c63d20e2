"""Searches and timings for an engine before anything is measured.

gemm_tuning.py      matrix products: shapes in, a file of tuned configurations out
chain_lengths.py    number of tokens to draft at each batch size, from measured runs
kernel_report.py    a benchmark of single kernels, as JSON and as a table
"""
