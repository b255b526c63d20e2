"""Making pairs."""
