"""The drawn error trees are true, and what a process ends with is told apart."""

import importlib
import inspect
import pickle
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from config import errors
from config.errors import ConfigError, GatewayError

ROOT = Path(__file__).parents[2]
PACKAGES = ("config", "bridge", "auth", "streaming", "gateway")
_BRANCH = re.compile(r"^(?P<lead>[ │]*)(?:[├└]── )?(?P<name>[\w.]+|…)(?:\s{2,}.*)?$")


def drawn(module: ModuleType) -> dict[str, str | None]:
    """Each name in the tree that the module's docstring draws, with the name it hangs on."""
    lines = [
        line
        for line in inspect.cleandoc(module.__doc__ or "").split("\n")
        if "──" in line or line.strip() == "GatewayError"
    ]
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in lines:
        found = _BRANCH.match(line)
        assert found, f"{module.__name__}: this line of the drawing cannot be read: {line!r}"
        depth = line.index("──") if "──" in line else -1
        while path and path[-1][0] >= depth:
            path.pop()
        parents[found["name"]] = path[-1][1] if path else None
        path.append((depth, found["name"]))
    return parents


def named_modules() -> list[str]:
    return [name for name in drawn(errors) if "." in name]


def test_every_error_module_hangs_on_the_root_tree() -> None:
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("errors.py")
    }
    assert found - {"config.errors"} <= set(named_modules()), "draw the module in config/errors.py"


@pytest.mark.parametrize("name", ["config.errors", *named_modules()])
def test_a_drawn_tree_is_that_of_the_classes(name: str) -> None:
    if find_spec(name.split(".", maxsplit=1)[0]) is None or find_spec(name) is None:
        pytest.skip(f"{name} does not exist yet")
    module = importlib.import_module(name)
    parents = drawn(module)
    classes = {
        one.__name__: one
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, GatewayError) and one.__module__ == name
    }
    assert set(classes) <= set(parents), f"{name} does not draw all of its classes"
    for drawn_name, parent in parents.items():
        if drawn_name == "…" or "." in drawn_name:
            continue
        cls = getattr(module, drawn_name, None) or getattr(errors, drawn_name, None)
        assert cls is not None, f"{name} draws {drawn_name}, which does not exist"
        nearest = next((base.__name__ for base in cls.__mro__[1:] if base.__name__ in parents), None)
        assert nearest == parent, f"{name} draws {drawn_name} below {parent}, but it derives from {nearest}"


def test_a_config_error_survives_the_way_between_processes() -> None:
    assert pickle.loads(pickle.dumps(ConfigError("a", "b"))).problems == ("a", "b")
