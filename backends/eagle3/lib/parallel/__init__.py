"""A target on several GPUs.

shard.py  which part of every tensor each of them has
"""
