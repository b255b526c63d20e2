"""Sandboxes that engines run in: their command lines, what is seen inside, and whether one holds.

Tests that need one are skipped without bubblewrap.
"""

from __future__ import annotations

import shutil

import pytest

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
