"""Machines whose state changes along a block.

heated.py   a GPU whose clock is low after a prefill, blocks of unequal length, and the samples around them
"""
