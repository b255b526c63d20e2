"""A page of tables in no format yet, and its formats.

sheet.py       Sheet: title, what must be read first, sections of tables
view.py        SheetView: the `protocols.View` that every view is, a sheet for people and tables for programs
console.py     a sheet on a terminal, or as plain lines
html.py        a sheet as one HTML file
markdown.py    a sheet as Markdown
"""
