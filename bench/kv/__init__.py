"""Narrower caches of the reference engine.

speed.py   what they cost beside the cache in the engine's own dtype
"""
