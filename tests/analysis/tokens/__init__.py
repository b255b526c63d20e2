"""Tests of the rule that judges two builds."""
