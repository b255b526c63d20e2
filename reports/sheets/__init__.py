"""A page of tables in no format yet, and its formats.

sheet.py       Sheet: title, what must be read first, sections of tables
formats.py     a sheet as HTML, as Markdown, on a terminal, or as plain lines
"""
