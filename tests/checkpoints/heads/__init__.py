"""Heads of any trainer, as tensors without files."""
