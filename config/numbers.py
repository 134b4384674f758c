"""Numbers, sizes and lists of names in sentences."""

from collections.abc import Iterable


def bytes_text(value: float) -> str:
    """A size with a binary unit and at most one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def length_text(seconds: float) -> str:
    """``4.2 s``, ``37 s``, ``5 min``, ``5 h``, ``3 d``."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} d"


def many(count: int, one: str) -> str:
    """``1 partition``, ``3 partitions``."""
    return f"{count} {one if count == 1 else one + 's'}"


def some(names: Iterable[object], shown: int = 6) -> str:
    """The first few names, and the number of the others."""
    texts = [str(name) for name in names]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")
