"""Figures followed over runs (`core.trends`), as input of other tools.

otava                      Apache Otava, which looks for change points
github_action_benchmark    the action github-action-benchmark, which draws them
"""
