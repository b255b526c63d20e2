"""Tests of the stages of a pass, as a dump and as a file."""
