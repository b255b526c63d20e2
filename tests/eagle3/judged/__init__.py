"""Runs of the reference engine through the harness: second looks, variants, pairs, a fleet."""
