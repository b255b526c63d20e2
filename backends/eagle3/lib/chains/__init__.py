"""Chains of draft tokens that have fewer than K, in any engine.

table.py    how many tokens to draft by how many requests run
lengths.py  the options that shorten chains, what they do not go with, and how they are stated
"""
