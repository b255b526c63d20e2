"""The caches of the reference engine in formats narrower than what it computes in.

"""
