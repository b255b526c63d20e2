"""Stands in for torch: its version, and no GPU."""

__version__ = "2.11.0+stand.in"


class cuda:
    @staticmethod
    def is_available() -> bool:
        return False
