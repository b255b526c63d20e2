"""Fields whose key in stored JSON keeps an older name, until a schema with a migration renames it."""

from __future__ import annotations


def stored_keys(**keys: str) -> dict[str, object]:
    """Field name → key in stored JSON, as the `__pydantic_config__` of a dataclass; other fields keep their names."""
    return {"alias_generator": lambda field: keys.get(field, field)}
