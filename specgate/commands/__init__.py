"""The commands, one file each or two that belong together; `specgate.cli` puts them together."""
