"""From raw samples to figures: pure functions."""
