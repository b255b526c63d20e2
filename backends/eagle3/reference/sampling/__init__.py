"""Sampling in the reference engine: what takes the place of the greedy choice at a temperature.

"""
