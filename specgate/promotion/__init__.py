"""Micro before full."""
