"""Servers at temperatures above 0: what requests can ask for, and the distribution that is shown.

"""
