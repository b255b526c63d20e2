"""report.html: one run as one file that opens anywhere, offline.

html        the report: puts the page together from the templates
points      the section of one point: its pictures, or why one is not there
grounds     what the result rests on: engines, prompts, environment, files
"""
