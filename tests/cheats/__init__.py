"""Engines that cheat, or have the bug that looks the same, and what a run says of them. docs/trust.md has the table."""
