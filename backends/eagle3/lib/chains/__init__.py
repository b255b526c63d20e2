"""Chains of draft tokens that have fewer than K, in any engine.

"""
