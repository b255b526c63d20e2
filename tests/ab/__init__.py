"""Tests of `specgate ab`: two builds of an engine in one session."""
