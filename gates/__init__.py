"""Judges, each registered as an entry point of the group `specgate.gates`."""
