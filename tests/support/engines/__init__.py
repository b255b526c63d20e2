"""Engines that tests bring along.

lying.py     a back end from outside, with options that change its answers
plugged.py   the back end of an engine that a test has written
"""
