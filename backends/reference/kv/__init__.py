"""The caches of the reference engine in formats narrower than what it computes in.

options.py   what `-o kv=` and `-o draft_kv=` ask for, checked before anything is loaded
planes.py    keys or values of one layer in each format: written and quantised, dequantised and read
"""
