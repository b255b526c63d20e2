"""Formats in which keys and values are cached.

modes.py        the formats, their requirements of a head, bytes per position; needs no torch
fp8.py          E4M3 with a scale per block of positions and head
nvfp4.py        E2M1 with an E4M3 scale per 16 elements and a float32 scale
lookup.py       numbers behind codes, from tables, two at a time
options.py      the options `kv` and `draft_kv` of an engine
calibration.py  the format that a checkpoint says its cache was calibrated for
"""
