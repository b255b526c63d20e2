"""Formats in which keys and values are cached.

modes.py        which there are, what they ask of a head, how many bytes a position takes; needs no torch
fp8.py          E4M3 with a scale per block of positions and head
nvfp4.py        E2M1 with an E4M3 scale per 16 elements and a float32 scale
lookup.py       what codes stand for, from tables, two numbers at a time
asked.py        what the options `kv` and `draft_kv` of an engine ask for
calibration.py  the format that a checkpoint says its cache was calibrated for
"""
