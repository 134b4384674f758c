"""Settings of a test as TOML."""

import json
from collections.abc import Mapping


def to_toml(table: Mapping[str, object], path: str = "") -> str:
    """Nested mappings as TOML; lists of mappings become arrays of tables."""
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            tables.append(f"[{path}{key}]\n{to_toml(value, f'{path}{key}.')}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [f"[[{path}{key}]]\n{to_toml(item, f'{path}{key}.')}" for item in value]
        else:
            lines.append(f"{key} = {json.dumps(value)}\n")  # JSON's scalars and lists are TOML's
    return "".join(lines) + "\n".join(tables)
