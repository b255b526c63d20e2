"""MXFP4, as gpt-oss stores its experts: blocks of 32 four-bit numbers with a common power of two.

format.py   what such a number is, without torch
coding.py   decoding and encoding of tensors
"""
