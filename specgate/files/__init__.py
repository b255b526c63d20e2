"""Files on disk: run folders, JSON records, YAML, the cache."""
