"""Verification over a part of the cache (SpecPV) in the engine.

"""
