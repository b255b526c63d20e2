"""Runs that end: their last lines, endings that are cut, and runs that are continued."""
