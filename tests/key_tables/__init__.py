"""Generated parts of the documentation: tables of keys, columns, codes, commands and variables, and JSON schemas.

    python -m tests.key_tables --write

A table stands between `<!-- keys of Scenario: begin -->` and `<!-- keys of Scenario: end -->`. `tests/test_docs.py`
fails where a document or a schema is not what this package writes.

nouns.py      keys of YAML files and JSON schemas, from the nouns
lists.py      exit codes, commands, gates, policies, figures and columns
variables.py  environment variables
record.py     claims of the documents, with the stored runs that they rest on
__main__.py   write them, or say which files differ
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.key_tables.lists import LISTS
from tests.key_tables.nouns import NOUNS, SCHEMAS, schema, table
from tests.support.command import ROOT
from tests.support.kept_runs import RESULTS

DOCS = ROOT / "docs"
ENGINE_DOCS = ROOT / "backends" / "eagle3" / "docs"
TABLE = re.compile(r"(<!-- ([\w ]+): begin -->\n)(.*?)(<!-- \2: end -->)", re.DOTALL)


def written() -> Iterator[tuple[Path, str]]:
    """Yield every file that holds something generated, with what it should hold."""
    tables = {f"keys of {noun.__name__}": table(noun) for noun in NOUNS}
    tables |= {name: text for make in LISTS for name, text in make()}
    for file in sorted((*DOCS.glob("*.md"), RESULTS / "README.md", *ENGINE_DOCS.glob("*.md"))):
        text = file.read_text(encoding="utf-8")
        if TABLE.search(text):
            yield file, TABLE.sub(lambda match: match[1] + tables[match[2]] + match[4], text)
    for name in SCHEMAS:
        yield DOCS / "schemas" / f"{name}.json", json.dumps(schema(name), ensure_ascii=False) + "\n"
