"""Costs of a mixture of experts: how many experts passes touch, and how far neighbouring tokens share them.

"""
