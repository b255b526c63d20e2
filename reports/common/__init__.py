"""What all renderers say alike.

figures     numbers as text, by the unit of their metric
summary     what every report says first: state, reason, and the command that repeats the run
tables      a run as rows: cells, comparisons, verdicts and their evidence
parts       Table, Entry and Picture: what a page is made of
asked       what a policy asks of the speed of a cell
markup      escaping, for Markdown, XML and GitHub's workflow commands
"""
