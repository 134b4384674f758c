"""docs/ledger.md says what is: its table is the schema."""

from pathlib import Path

from bridge import wire
from bridge.ledger import LedgerSnapshot
from config.errors import ExitStatus
from docs.print_tables import ledger_table

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")


def test_the_page_prints_the_table_of_fields() -> None:
    assert PAGE.partition("<!-- fields -->\n")[2].partition("<!-- /fields -->")[0] == ledger_table()


def test_the_fields_are_a_schema() -> None:
    names = [field.name for field in wire.LEDGER_FIELDS]
    assert len(set(names)) == len(names)
    assert set(wire.LEDGER_TERMS) <= set(names)
    assert set(wire.LEDGER_TERMS) == set(LedgerSnapshot.__slots__)


def test_the_page_names_the_statuses_of_verify() -> None:
    for status in (ExitStatus.OK, ExitStatus.MISSING_MESSAGES, ExitStatus.UNJUDGED):
        assert f"\n| {int(status)} | " in PAGE
