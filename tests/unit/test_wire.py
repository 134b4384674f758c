"""What stands in a record: one place for names, costs that are Kafka's own, and an import that stays light."""

import json
import re
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bridge import wire
from config.settings import RouteSettings
from docs.print_tables import HEADERS, header_bytes, headers_table

ROOT = Path(__file__).parents[2]


def test_every_header_name_is_in_the_table_once_and_is_the_gateways_own() -> None:
    listed = [spec.name.removesuffix("NAME") for spec in HEADERS]
    names = {constant: value for constant, value in vars(wire).items() if isinstance(value, str)}
    assert sorted(listed) == sorted(names[one] for one in names if re.fullmatch(r"(MQTT|GATEWAY|DLQ)_[A-Z_]+", one))
    assert len(set(listed)) == len(listed)
    assert all(name.startswith(wire.RESERVED_PREFIXES) for name in listed)


def test_every_selectable_header_has_its_word_in_the_settings() -> None:
    words = {spec.selected_by for spec in HEADERS} - {"(always)", "(dead letters)", "(marks of a replay)"}
    assert words == set(re.findall(r"'(\w+)'", str(RouteSettings.model_fields["metadata_headers"].annotation)))


@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 8191, 8192])
@pytest.mark.parametrize("name", ["", "x", "mqtt.user.größe", "n" * 63, "n" * 64, "ü" * 32])
def test_a_headers_cost_is_what_kafka_writes(name: str, value_bytes: int) -> None:
    def size(headers: list[wire.Header]) -> int:
        # The payload keeps the record's own length in one size of varint, whatever the header adds.
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        before = builder.size()
        builder.append(0, 0, b"k", b"v" * 20_000, headers)
        return builder.size() - before

    value = b"v" * value_bytes
    assert size([(name, value)]) - size([]) == header_bytes(name, value)


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")


def test_the_page_prints_the_table_of_headers(page: str) -> None:
    begin, end = "<!-- headers -->\n", "<!-- /headers -->"
    assert page.partition(begin)[2].partition(end)[0] == headers_table()


def test_the_page_names_every_reason_field_and_default(page: str) -> None:
    dead_letters = (ROOT / "docs" / "dead-letters.md").read_text(encoding="utf-8")
    for reason in wire.DeadLetterReason:
        assert f"| `{reason}` |" in dead_letters
    for header in HEADERS:
        assert f"`{header.name}`" in (dead_letters if header.name.startswith("dlq.") else page)
    streaming = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "streaming" / "decoding" / "schemas_default" / "reading.json").read_text())
    for name in schema["properties"]:
        row = re.search(rf"^\| `{name}` \| [^|]+ \|( required)? \| .*$", streaming, re.MULTILINE)
        assert row, name
        assert bool(row[1]) is (name in schema["required"])
    default = RouteSettings.model_fields["metadata_headers"].default
    assert f"by default `{list(default)!r}`".replace("'", '"') in " ".join(page.split())
