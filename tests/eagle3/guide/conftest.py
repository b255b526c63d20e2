"""The guide's wheel and environment, for the parts of it that need the engine."""

from tests.guide.conftest import environment, site, wheel

__all__ = ["environment", "site", "wheel"]
