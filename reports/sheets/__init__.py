"""A page of tables in no format yet, and its formats.

sheet       Sheet: title, what must be read first, sections of tables
view        SheetView: the `api.View` that every view is, a sheet rendered in the format that is asked for
console     a sheet on a terminal, or as plain lines
html        a sheet as one HTML file
markdown    a sheet as Markdown
"""
