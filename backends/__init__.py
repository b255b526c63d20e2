"""Things that can be measured, each registered as an entry point of the group `specgate.backends`."""
