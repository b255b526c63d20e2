"""Tests of two engines' stages beside each other."""
