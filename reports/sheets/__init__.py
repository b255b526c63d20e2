"""A page of tables in no format yet, and its formats.

sheet.py       a sheet of parts, in every form but the console's
console.py     a sheet on a terminal, or as plain lines
"""
