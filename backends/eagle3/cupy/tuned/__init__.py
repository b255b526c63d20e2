"""Configurations of matrix products that a search has found, and their look-up at run time.

nvidia-h100-80gb-hbm3.json, nvidia-h200.json  what comes with specgate, a file per kind of GPU
lookup.py         the configurations that are known for a GPU, and why one is not
gemms.py          makes the launchers of a step's products, each with its weight's configuration
required.py       PERF_MODE requires a tuned configuration for every product; the log of shapes for the tuner
"""
