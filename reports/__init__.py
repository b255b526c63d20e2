"""Renderers: how a run, or several, are shown. They come in by entry point, as `specgate.plugins` lists them.

    texts/      one run as text: console, plain lines, explanation, CSV, JUnit, Markdown, annotations of a CI job
    page/       one run as a page: report.html
    pictures/   the pictures of that page
    views/      several runs: compared, side by side, agreeing or not, followed over time
    sheets/     what the views are made of: a page of tables, written as terminal output, HTML or Markdown
    common/     what all of them say alike: figures, headlines, tables, escaping
    templates/  the HTML of page/ and sheets/, with its one script and its style sheet

They import the public rooms (`specgate.errors`, `contract`, `files`, `analysis`) and one another, and nothing else of
specgate. `docs/examples/report-plugin` is a report from outside.
"""
