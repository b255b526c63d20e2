"""What every EAGLE-3 engine shares: checkpoints, geometry, capture boundaries, speculative configuration."""
