"""report.html: one run as one file that opens anywhere, offline.

html.py        the report: puts the page together from the templates
head.py        what stands first: figures with what is asked of them, what was not judged, the facts
details.py     details, and gaps in what was measured
points.py      the section of one point: its pictures, or why one is not there
"""
