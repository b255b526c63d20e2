"""Write the generated parts of the documentation, or say which files differ."""

from __future__ import annotations

import sys

from tests.key_tables import written
from tests.support.command import ROOT

for file, text in written():
    if sys.argv[1:] == ["--write"]:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    same = file.is_file() and file.read_text(encoding="utf-8") == text
    print(file.relative_to(ROOT), "as it should be" if same else "differs")
