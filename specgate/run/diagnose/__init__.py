"""Questions about an engine that are no run (`specgate diagnose`).

parity.py        `specgate diagnose parity`: two engines' stages for one prompt
prefix_cache.py  `specgate diagnose cache`: the same requests with a prefix cache on and off
"""
