"""Each package's docstring is its map: it names every module and folder beside it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("config", "bridge", "auth", "streaming", "gateway")
FOLDERS = sorted(path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))


def named_in_map(folder: Path) -> set[str]:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return set(re.findall(r"^ *(\w+(?:/|\.py))   +\S", docstring, flags=re.MULTILINE))


def beside(folder: Path) -> set[str]:
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_package_names_all_that_is_in_it(folder: Path) -> None:
    assert named_in_map(folder) == beside(folder)


def test_no_folder_has_more_modules_than_a_reader_can_hold() -> None:
    sizes = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) - 1 for folder in FOLDERS}
    assert {name: size for name, size in sizes.items() if size > 20} == {}
