"""report.html: one run as one file that opens anywhere, offline.

html.py        the report: puts the page together from the templates
points.py      the section of one point: its pictures, or why one is not there
grounds.py     what the result rests on: engines, prompts, environment, files
"""
