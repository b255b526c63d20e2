"""Formats in which keys and values are cached.

modes.py        the formats, their options, and what they ask of a head
fp8.py          E4M3 with a scale per block of positions and head
nvfp4.py        E2M1 with an E4M3 scale per 16 elements and a float32 scale
lookup.py       numbers behind codes, from tables, two at a time
"""
