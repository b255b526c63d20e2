"""The parts of the guide headed "Without a GPU", run as they stand there."""
