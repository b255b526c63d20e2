"""A server with its prefix cache on and off: the same requests, with and without speculation.


What is made of it is pure: `specgate.analysis.prefix_cache`.
"""
