"""Figures followed over runs (`contract.trends`), as input of other tools.

otava.py                      Apache Otava, which looks for change points
github_action_benchmark.py    the action github-action-benchmark, which draws them
"""
