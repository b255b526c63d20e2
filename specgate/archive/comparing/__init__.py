"""Stored runs laid side by side (`specgate runs compare`), a file per choice of `--by`.

builds.py          two runs → a Contrast, judged by a policy
engines.py         engines side by side, cell by cell
other_results.py   results of other tools → a Contrast
acceptance.py      acceptance side by side, also by class of prompts
two_samples.py     ratios of two figures that were not measured in turns
"""
