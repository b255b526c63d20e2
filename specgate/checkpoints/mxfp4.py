"""Format of an MXFP4 number, without arithmetic: the harness reads configs, and torch takes seconds to import.

Source: OCP Microscaling Formats (MX) 1.0. A number is ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} (E2M1), a scale byte s means
2^(s − 127) (E8M0), and 255 is not a number. A byte holds two numbers, the first in its lower half.
"""

from __future__ import annotations

from typing import Final

BLOCK: Final = 32
"""Numbers that share a scale."""
BYTES: Final = BLOCK // 2
"""Bytes of the numbers of a block."""
NO_NUMBER: Final = 255
"""The scale that is not a number."""
BIAS: Final = 127
VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What the four bits mean."""
