"""The command line, with outlines in the place of pictures."""

from __future__ import annotations

from specgate.__main__ import main
from specgate.reports.pictures import svg
from tests.support.outlines import outline

if __name__ == "__main__":
    svg._svg = outline
    main()
