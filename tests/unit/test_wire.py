"""What stands in a record: one place for names, costs that are Kafka's own, and an import that stays light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bridge import wire
from config.settings import RouteSettings

ROOT = Path(__file__).parents[2]


def _names() -> dict[str, str]:
    return {
        constant: value
        for constant, value in vars(wire).items()
        if re.fullmatch(r"(MQTT|GATEWAY|DLQ)_[A-Z_]+", constant) and isinstance(value, str)
    }


def test_every_header_name_is_in_the_table_once_and_is_the_gateways_own() -> None:
    listed = [spec.name.removesuffix("NAME") for spec in wire.HEADERS]
    assert sorted(listed) == sorted(_names().values())
    assert len(set(listed)) == len(listed)
    for constant, name in _names().items():
        assert name.startswith(wire.RESERVED_PREFIXES)
        assert constant in wire.__all__


def test_every_selectable_header_has_its_word_in_the_settings() -> None:
    words = {spec.selected_by for spec in wire.HEADERS} - {"(always)", "(dead letters)", "(marks of a replay)"}
    field = RouteSettings.model_fields["metadata_headers"]
    assert words == set(re.findall(r"'(\w+)'", str(field.annotation)))
    assert set(wire.DEFAULT_METADATA_HEADERS) <= words
    assert field.default == wire.DEFAULT_METADATA_HEADERS


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
    assert size([(name, value)]) - size([]) == wire.header_bytes(name, value)


def test_importing_the_names_costs_a_spark_job_nothing() -> None:
    """bridge.wire is read by the Spark jobs: nothing of the gateway's libraries may come with it."""
    heavy = (
        "pydantic",
        "paho",
        "aiokafka",
        "aiohttp",
        "structlog",
        "prometheus_client",
        "config",
        "gateway",
        "asyncio",
    )
    code = f"import sys, bridge.wire; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_telemetry_fields_are_a_schema() -> None:
    names = [field.name for field in wire.TELEMETRY_FIELDS]
    assert len(set(names)) == len(names)
    kinds = {field.name: field.kind for field in wire.TELEMETRY_FIELDS}
    assert set(kinds.values()) <= {"string", "long", "double"}
    required = {field.name: field.kind for field in wire.TELEMETRY_FIELDS if field.required}
    assert required == {"device": "string", "type": "string", "seq": "long", "ts": "long"}


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")


def test_the_page_prints_the_table_of_headers(page: str) -> None:
    begin, end = "<!-- headers -->\n", "<!-- /headers -->"
    assert page.partition(begin)[2].partition(end)[0] == wire.headers_table()


def test_the_page_names_every_reason_field_and_default(page: str) -> None:
    dead_letters = (ROOT / "docs" / "dead-letters.md").read_text(encoding="utf-8")
    for reason in wire.DeadLetterReason:
        assert f"| `{reason}` |" in dead_letters
    streaming = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    for field in wire.TELEMETRY_FIELDS:
        row = re.search(rf"^\| `{field.name}` \| [^|]+ \|( required)? \| .*$", streaming, re.MULTILINE)
        assert row, field.name
        assert bool(row[1]) is field.required
    assert f"metadata_headers = {list(wire.DEFAULT_METADATA_HEADERS)!r}".replace("'", '"') in page
