"""ARCHITECTURE.md is a map, and so is each package's docstring: it names every module and folder beside it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("config", "bridge", "auth", "streaming", "gateway")
FOLDERS = sorted(path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))


def beside(folder: Path) -> set[str]:
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_package_names_all_that_is_in_it(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert set(re.findall(r"^ *(\w+(?:/|\.py))   +\S", docstring, flags=re.MULTILINE)) == beside(folder)


def test_no_folder_has_more_modules_than_a_reader_can_hold() -> None:
    sizes = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) - 1 for folder in FOLDERS}
    assert {name: size for name, size in sizes.items() if size > 20} == {}


def test_every_file_of_the_map_is_there() -> None:
    """A name without a folder may be that of a file in any package."""
    named = {name for name in re.findall(r"`([\w*.-][\w/*.-]*)`", ARCHITECTURE) if "/" in name or name.endswith(".py")}
    assert len(named) > 60
    for name in named:
        patterns = [name] if "/" in name else [f"{package}/**/{name}" for package in PACKAGES]
        assert any(any(ROOT.glob(pattern)) for pattern in patterns), f"ARCHITECTURE.md names {name}"


def test_every_folder_of_the_product_is_on_the_map() -> None:
    names = {folder.relative_to(ROOT).as_posix() for folder in FOLDERS}
    assert {name for name in names if f"`{name}`" not in ARCHITECTURE} == set()
