"""What is done with runs that are stored: read, rendered, compared, laid side by side, followed in time."""
