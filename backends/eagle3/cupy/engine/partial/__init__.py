"""Verification over a part of the cache (SpecPV) in the engine.

option.py    what of `-o specpv…` the engine takes
schedule.py  which step of a decode run verifies in part, and which in full
counting.py  what a decode run counts of both
"""
