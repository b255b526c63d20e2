"""Fields that keep an older name as their key in stored JSON, until a schema with a migration renames the key."""

from __future__ import annotations


def stored_keys(**keys: str) -> dict[str, object]:
    """The `__pydantic_config__` of a dataclass: field name → key in stored JSON. Other fields keep their names."""
    return {"alias_generator": lambda field: keys.get(field, field)}
