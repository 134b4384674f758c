"""The reference page is current and complete: no setting without a text, a default or a bound."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from config.errors import ExitStatus
from config.loading.reference import reference
from config.loading.sources import RESERVED
from config.schema import Field, environment_names, fields_of, texts_of
from config.settings import Settings

ROOT = Path(__file__).parents[2]


def every_field(table: type[BaseModel] = Settings, at: str = "") -> Iterator[tuple[str, type[BaseModel], Field]]:
    """Those in lists of tables too."""
    for field in fields_of(table).values():
        yield f"{at}{field.name}", table, field
        if field.table is not None:
            yield from every_field(field.table, f"{at}{field.name}.")


FIELDS = list(every_field())


def test_the_page_in_docs_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "run: gateway config reference > docs/configuration.md"


def test_the_page_has_every_text_and_variable() -> None:
    """The text of each setting, once where several tables have it from one class."""
    page = " ".join(reference().split())
    missing = [name for name, table, field in FIELDS if texts_of(table)[field.name] not in page]
    missing += [name for name in RESERVED if f"`{name}`" not in page]
    assert not missing


def test_the_page_of_commands_has_every_exit_status() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [one for one in ExitStatus if f"\n| {int(one)} | " not in page] == []


def test_the_page_links_to_its_own_sections() -> None:
    page = reference()
    headings = {re.sub("[^a-z0-9_ -]", "", line.lstrip("# ").lower()) for line in page.splitlines() if line[:1] == "#"}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= headings


def test_every_setting_says_what_it_does() -> None:
    texts = {name: (texts_of(table).get(field.name, ""), field.table) for name, table, field in FIELDS}
    assert [name for name, (text, _) in texts.items() if not text.endswith(".")] == [], "no text, or no sentence"
    short = [name for name, (text, table) in texts.items() if table is None and len(text) < 35]
    assert short == [], "say what it does, why this default, and what the extremes do"


def is_number(field: Field) -> bool:
    default, kind = field.info.default, str(field.info.annotation)
    if "Literal" in kind or isinstance(default, bool):
        return False
    numeric = re.search(r"\b(int|float)\b", kind) is not None
    return numeric or field.unit is not None or isinstance(default, int | float | timedelta)


def test_every_number_has_bounds() -> None:
    bounds = {name: set(field.bounds) for name, _, field in FIELDS if is_number(field)}
    assert len(bounds) > 100
    assert [name for name, has in bounds.items() if not has & {"ge", "gt"}] == []
    unlimited = {"kafka.topics.declare.retention"}  # as much as there is
    assert {name for name, has in bounds.items() if not has & {"le", "lt"}} == unlimited


NUMBERS = {name: field for name, _, field in FIELDS if is_number(field) or name.endswith(".qos")}


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_takes_true_which_python_counts_as_one(name: str) -> None:
    field = NUMBERS[name]
    setting = TypeAdapter(Annotated[field.info.annotation, None, *field.info.metadata])
    with pytest.raises(ValidationError, match=r"true or false|plain number|a size is"):
        setting.validate_python({"a": True} if field.kind == "map" else True)


def test_defaults_keep_their_own_bounds() -> None:
    """pydantic does not check defaults."""
    given = Settings().model_dump()
    given["mqtt"] = {key: value for key, value in given["mqtt"].items() if value is not None}
    assert Settings(**given) == Settings()


def test_no_secrets_file_name_is_also_a_setting() -> None:
    for _, table, field in FIELDS:
        if field.kind == "secret":
            assert f"{field.name}_file" not in fields_of(table)


def test_every_variable_that_the_code_reads_is_known() -> None:
    """A variable that some room reads and the loader does not know would be refused as a misspelling."""
    known = {*environment_names(Settings), *RESERVED}
    unknown = []
    for package in ("config", "bridge", "auth", "streaming", "gateway"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            read = re.findall(r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["'](GATEWAY_\w+)""", text)
            unknown += [f"{name} in {path.relative_to(ROOT)}" for name in read if name not in known]
    assert not unknown, "add them to config.loading.sources.RESERVED"
