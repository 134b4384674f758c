"""What a test found, with the type that it must have."""

from typing import TypeVar

T = TypeVar("T")


def there(found: T | None) -> T:
    """What was found; AssertionError where there is nothing."""
    assert found is not None
    return found


def is_a(kind: type[T], found: object) -> T:
    """What was found, which must be of this class."""
    assert isinstance(found, kind), found
    return found
