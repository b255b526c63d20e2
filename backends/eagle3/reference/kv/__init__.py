"""The caches of the reference engine in formats narrower than what it computes in.

planes.py    keys or values of one layer in each format: written and quantised, dequantised and read
"""
