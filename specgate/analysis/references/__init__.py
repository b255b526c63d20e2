"""Compare a run with a reference: what both share, and what differs. Pure.

"""
