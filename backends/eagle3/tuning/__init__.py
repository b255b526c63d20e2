"""What is searched and timed for an engine before anything is measured.

gemm_tuning.py      matrix products: shapes in, a file of tuned configurations out
fmha_run.py         a sweep over configurations of attention, as it is asked for
fmha_points.py      which configurations it tries, and on which prompts
fmha_sweep.py       decodes under one configuration after the other, in one loaded engine
chain_lengths.py    how many tokens to draft at each batch size, from measured runs
kernel_report.py    a benchmark of single kernels, as JSON and as a table
"""
