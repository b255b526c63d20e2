"""Stored runs laid side by side (`specgate runs compare`), a file per choice of `--by`.

builds.py          two runs → a Contrast, judged by a policy
engines.py         engines side by side, cell by cell
texts.py           texts and acceptance of engines beside a reference's → an Agreement
near_ties.py       how near to a tie the reference was where another engine left its text
acceptance.py      acceptance side by side, also by class of prompts
two_samples.py     ratios of two figures that were not measured in turns
"""
