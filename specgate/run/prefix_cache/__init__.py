"""A server with its prefix cache on and off: the same requests, with and without speculation.

asking.py    opens the engine twice, asks, and asks for logits where texts part

What is made of it is pure: `specgate.analysis.prefix_cache`.
"""
