"""The judges of what is drawn at a temperature.

distribution.py   are texts drawn from the target's distribution?
"""
