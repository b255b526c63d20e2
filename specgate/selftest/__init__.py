"""The self-test: known faults, and whether the judge sees them."""
