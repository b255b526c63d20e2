"""SpecPV, verification over a part of the cache.

__main__.py  what it accepts, changes and reads, by the reference engine
cycles.py    how long its cycles take in the built-in engine
"""
