"""Attention over the paged cache.

attention.py    launches `attention.cu`
fmha_config.py  how its work is divided, and which division an engine uses by itself
"""
