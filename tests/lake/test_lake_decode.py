"""Records decoded by a schema folder: against an independent decoder in plain Python, and case by case."""

# ruff: noqa: E501 (a case is a line)

import io
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.settings import Settings
from streaming.decoding.decode import GOOD, Decoding
from streaming.decoding.device_schemas import DeviceSchemas, load_device_schemas
from streaming.decoding.fields import BadPayloadError, Binary, PayloadField
from streaming.decoding.protobuf_schemas import protobuf_reader
from streaming.silver.job import registered_rows
from tests.chaos.harness import FULL

RECEIVED = datetime(2026, 11, 21, 6, tzinfo=UTC)
KAFKA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)

INDEX = """
[units]
temperature = "°C"
pressure = "Pa"

[types.boiler]
[types.boiler.signals]
temperature = { field = "t", unit = "°F" }
pressure = { field = "hw.p", unit = "psi" }

[types.clock]
mqtt_topics = ["plant/+/clock/#"]
device = { mqtt_topic = 1 }
sequence = { header = "mqtt.user.n" }
time = "at"
time_format = "iso8601"

[types.nano]
kafka_topics = ["nanos"]
device = { header = "gateway.device" }
time_format = "ns"

[types.plain]
kafka_topics = ["plain"]
device = { key = true }
time = { received = true }

[types.seconds]
time_format = "s"

[types.meter]
kafka_topics = ["meters"]
framing = "single_object"
versions = { "meter_1.avsc" = 0 }
ignore = ["tags"]
[types.meter.signals]
temperature = { unit = "K" }

[types.raw]
file = "meter.avsc"
kafka_topics = ["raw"]
ignore = ["tags"]
[types.raw.signals]
temperature = { unit = "K" }

[types.epoch]
file = "meter_1.avsc"
kafka_topics = ["epochs"]
time_format = "s"
[types.epoch.signals]
temperature = { unit = "K" }

[types.registered]
file = "meter.avsc"
kafka_topics = ["registered"]
framing = "confluent"
id = 7
versions = { "meter_1.avsc" = 3 }
ignore = ["tags"]
[types.registered.signals]
temperature = { unit = "K" }

[types.tracker]
kafka_topics = ["trackers"]
time = "time"
time_format = "ns"
"""
BOILER: dict[str, Any] = {
    "type": "object",
    "required": ["device", "ts", "t"],
    "properties": {
        "device": {"type": "string", "minLength": 1, "maxLength": 8},
        "type": {"type": "string"},
        "seq": {"type": "integer", "minimum": 0},
        "ts": {"type": "integer"},
        "t": {"type": "number", "minimum": -40, "exclusiveMaximum": 400},
        "hw": {"type": "object", "properties": {"p": {"type": "number"}, "on": {"type": "boolean"}}},
        "state": {"type": "string", "enum": ["off", "heating", "5"]},
        "count": {"type": "integer"},
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    # A field that is a number for boilers and text here: another group.
    "clock": {"at": {"type": "string", "format": "date-time"}, "count": {"type": "integer"}},
    "nano": {"ts": {"type": "integer"}, "state": {"type": "string"}, "T": {"type": "number"}},
    "plain": {"temperature": {"type": "number"}, "hw": {"type": "boolean"}},
    "seconds": {
        "device": {"type": "string"},
        "ts": {"type": "number", "maximum": 4e9},
        "mode": {"type": "string", "enum": [None]},
        "it's": {"type": "number"},
    },
}
METER: dict[str, Any] = {
    "type": "record",
    "name": "Meter",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "seq", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temperature", "type": ["null", "double"], "default": None},
        {"name": "energy", "type": "double", "default": 0.5},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {
            "name": "line",
            "type": ["null", {"type": "record", "name": "Line", "fields": [{"name": "amps", "type": "float"}]}],
            "default": None,
        },
    ],
}
METER_1: dict[str, Any] = {
    "type": "record",
    "name": "Meter",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "seq", "type": "int"},
        {"name": "ts", "type": "long"},
        {"name": "temperature", "type": ["null", "float"]},
    ],
}


def tracker_file(kind_of_speed: int = FieldDescriptorProto.TYPE_DOUBLE) -> bytes:
    """A descriptor set as protoc writes it, imports included."""
    from google.protobuf import timestamp_pb2

    moment = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(moment)  # type: ignore[attr-defined]
    mine = FileDescriptorProto(name="tracker.proto", package="fleet", syntax="proto3", dependency=[moment.name])
    message = mine.message_type.add(name="Position")
    one = FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name="device", number=1, type=FieldDescriptorProto.TYPE_STRING, label=one)
    message.field.add(name="seq", number=2, type=FieldDescriptorProto.TYPE_UINT64, label=one)
    message.field.add(
        name="time", number=3, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=one
    )
    message.field.add(name="speed", number=4, type=kind_of_speed, label=one)
    optional(message, "altitude", 5, FieldDescriptorProto.TYPE_FLOAT)
    optional(message, "moving", 6, FieldDescriptorProto.TYPE_BOOL)
    return FileDescriptorSet(file=[moment, mine]).SerializeToString()


def optional(message: DescriptorProto, name: str, number: int, kind: int) -> None:
    message.oneof_decl.add(name=f"_{name}")
    message.field.add(
        name=name,
        number=number,
        type=kind,  # type: ignore[arg-type]
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        proto3_optional=True,
        oneof_index=len(message.oneof_decl) - 1,
    )


def position(data: bytes, **values: Any) -> bytes:
    pool: Any = DescriptorPool()
    for file in FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("fleet.Position"))(**values).SerializeToString()


def test_a_text_of_proto2_that_is_not_utf8_is_refused() -> None:
    """The library gives its bytes, which Arrow would not take: the job would end, at each start again."""
    file = FileDescriptorProto(name="old.proto", syntax="proto2")
    field_of = file.message_type.add(name="Old").field.add
    field_of(name="device", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL)
    binary = Binary("none", (("old.desc", FileDescriptorSet(file=[file]).SerializeToString()),), message="Old")
    read = protobuf_reader(binary, (PayloadField(("device",), "string"),))
    assert read(b"\n\x01d") == ["d"]
    with pytest.raises(BadPayloadError, match="a text in Old is not UTF-8"):
        read(b"\n\x01\xff")


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> DeviceSchemas:
    where = tmp_path_factory.mktemp("schemas")
    (where / "schemas.toml").write_text(INDEX)
    (where / "boiler.json").write_text(json.dumps(BOILER))
    for name, properties in OTHERS.items():
        (where / f"{name}.json").write_text(json.dumps({"type": "object", "properties": properties}))
    (where / "meter.avsc").write_text(json.dumps(METER))
    (where / "meter_1.avsc").write_text(json.dumps(METER_1))
    (where / "tracker.desc").write_bytes(tracker_file())
    return load_device_schemas(where)


@dataclass
class Sent:
    """One record, and what is expected of it: columns, or a reason and a part of the detail."""

    value: bytes | None
    expected: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    detail: str = ""
    topic: str = "telemetry"
    key: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)


def as_records(spark: SparkSession, sent: list[Sent]) -> DataFrame:
    rows = [
        (one.key, one.value, one.topic, 0, offset, RECEIVED, 0, list(one.headers.items()))
        for offset, one in enumerate(sent)
    ]
    return spark.createDataFrame(rows, KAFKA)


def decode(spark: SparkSession, schemas: DeviceSchemas, sent: list[Sent]) -> list[Row]:
    rows = Decoding(schemas).decoded(as_records(spark, sent)).collect()
    return sorted(rows, key=lambda row: row["offset"])


def boiler(**values: Any) -> bytes:
    return json.dumps({"device": "b-1", "type": "boiler", "seq": 1, "ts": 5, "t": 212.0, **values}).encode()


def avro(schema: dict[str, Any], **values: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), values)
    return into.getvalue()


def marked(schema: dict[str, Any], **values: Any) -> bytes:
    print_ = fingerprint(to_parsing_canonical_form(fastavro.parse_schema(schema)), "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(print_) + avro(schema, **values)


METER_NOW = {"device": "m", "seq": 9, "ts": 77, "temperature": 273.15, "energy": 1.5, "tags": ["x"], "line": None}
METER_OLD = {"device": "m", "seq": 9, "ts": 77, "temperature": 300.0}
READ_NOW = {"device": "m", "seq": 9, "ts_ms": 77, "temperature": 0.0, "energy": 1.5, "amps": None}
CLOCK = {"mqtt.topic": b"plant/hall-3/clock", "mqtt.user.n": b"12"}

CASES = [
    Sent(boiler(), {"device": "b-1", "type": "boiler", "seq": 1, "ts_ms": 5, "temperature": 100.0, "pressure": None}),
    Sent(boiler(hw={"p": 1}, count=-3.0), {"pressure": pytest.approx(6894.757293168361, rel=1e-14), "count": -3}),
    Sent(boiler(hw={"on": True}), {"on": True}),
    Sent(boiler(state="5", hw=None, count=None), {"state": "5", "count": None}),
    Sent(boiler(device="12"), {"device": "12"}),
    Sent(boiler(device="12", other={"device": 12}), {"device": "12"}),
    Sent(boiler(device="true", note='a \\ and "device": 5'), {"device": "true"}),
    Sent(boiler(more=[1, {"t": "x"}]), {"temperature": 100.0}),
    Sent(boiler(device="\ud83d"), reason="not_json"),  # half a character, as an escape
    Sent(boiler(device="what?\n"), {"device": "what?\n"}),
    Sent(boiler(device=12), reason="wrong_type", detail="device is no string but bigint"),
    Sent(boiler().replace(b'"device": "b-1"', b'"d\\u0065vice": 7'), reason="wrong_type", detail="device"),
    Sent(boiler(device=["12"]), reason="wrong_type", detail="device is no string but array"),
    Sent(boiler(device=True), reason="wrong_type", detail="device is no string but boolean"),
    Sent(boiler(t="212"), reason="wrong_type", detail="t is no double but string"),
    Sent(boiler(hw=5), reason="wrong_type", detail="hw is no object but bigint"),
    Sent(boiler(hw={"on": "yes"}), reason="wrong_type", detail="hw.on is no boolean but string"),
    Sent(boiler(count=1.5), reason="wrong_type", detail="count is no long"),
    Sent(boiler(seq=1.5), reason="wrong_type", detail="seq is no long"),
    Sent(boiler(seq=2**63), reason="wrong_type", detail="seq is no long"),
    Sent(boiler(t=None), reason="missing_field", detail="t"),
    Sent(boiler(device=None), reason="missing_field", detail="device"),
    Sent(boiler(t=400), reason="out_of_range", detail="t is 400"),
    Sent(boiler(t=-40), {"temperature": -40.0}),
    Sent(boiler(seq=-1), reason="out_of_range", detail="seq is -1"),
    Sent(boiler(ts=-1), reason="out_of_range", detail="ts is -1"),
    Sent(boiler(ts=253_402_300_800_000), reason="out_of_range", detail="ts is"),
    Sent(boiler(count=2**53 + 2), reason="out_of_range", detail="count"),
    Sent(boiler(count=1e300), reason="out_of_range", detail="count"),
    Sent(boiler(hw={"p": 1e306}), reason="out_of_range", detail="hw.p is too large in Pa"),
    Sent(boiler().replace(b"212.0", b"1e999"), reason="out_of_range"),
    Sent(boiler(state="cold"), reason="schema", detail="state is cold"),
    Sent(boiler(device=""), reason="schema", detail="device"),
    Sent(boiler(device="x" * 9), reason="schema", detail="device is xxxxxxxxx"),
    Sent(boiler(t=math.nan), reason="not_json"),
    Sent(boiler() + b"\n" + boiler(), reason="not_json"),
    Sent(boiler() + b', "x": 1', reason="not_json"),
    Sent(boiler() + b"," + boiler(), reason="not_json"),
    Sent(boiler() + b'],"x":[1', reason="not_json"),
    Sent(b'1],"record":[' + boiler(), reason="not_json"),
    Sent(boiler(t=1) + b'],"whole":true} and more', reason="not_json"),
    Sent(boiler()[:-1], reason="not_json"),
    Sent(b"[1]", reason="not_an_object"),
    Sent(b"null", reason="not_an_object"),
    Sent(b"\xff\xfe", reason="not_utf8"),
    Sent(boiler(note="\udcff").replace(b"\\udcff", b"\xff"), reason="not_utf8"),
    Sent(b"", reason="empty"),
    Sent(None, reason="empty"),
    # Types of their own groups, told by topic; fields of other types are none of theirs.
    Sent(b'{"at":"1970-01-01T01:00:00.0015+01:00","count":3,"t":5}', {"device": "hall-3", "type": "clock", "seq": 12, "ts_ms": 1, "count": 3, "temperature": None}, headers=CLOCK),
    Sent(b'{"at":"1970-01-01T00:00:60Z"}', reason="wrong_type", detail="at is 1970-01-01T00:00:60Z", headers=CLOCK),
    Sent(b'{"at":"1970-01-01 00:00:00"}', reason="wrong_type", detail="no date and time with a zone", headers=CLOCK),
    Sent(b'{"at":5}', reason="wrong_type", detail="at is no string", headers=CLOCK),
    Sent(b'{"at":"1969-12-31T23:59:59Z"}', reason="out_of_range", detail="at", headers=CLOCK),
    Sent(b"{}", reason="missing_field", detail="at", headers=CLOCK),
    Sent(b'{"at":"1970-01-01T00:00:00Z"}', reason="missing_field", detail="sequence", headers={**CLOCK, "mqtt.user.n": b"x"}),
    Sent(b'{"ts":1763683200123456789,"state":"x","T":1,"t":"text"}', {"device": "n", "type": "nano", "ts_ms": 1763683200123, "state": "x", "t": 1.0, "seq": None}, topic="nanos", headers={"gateway.device": b"n"}),
    Sent(b'{"ts":5}', reason="missing_field", detail="device (header gateway.device)", topic="nanos"),
    Sent(b'{"ts":5}', reason="missing_field", detail="device", topic="nanos", headers={"gateway.device": b"\xff"}),
    Sent(b'{"temperature":1.5,"hw":true,"type":7}', {"device": "k", "type": "plain", "temperature": 1.5, "hw": True, "ts_ms": int(RECEIVED.timestamp() * 1000)}, topic="plain", key=b"k"),
    Sent(b'{"device":"s","type":"seconds","ts":1763683200.123}', {"type": "seconds", "ts_ms": 1763683200123}),
    Sent(b'{"device":"s","type":"seconds","ts":1e300}', reason="out_of_range", detail="ts"),
    Sent(b'{"device":"s","type":"seconds","ts":5e9}', reason="out_of_range", detail="ts is 5.0E9"),
    Sent(b'{"device":"s","type":"seconds","ts":-5e9}', reason="out_of_range", detail="ts is -5.0E9"),
    Sent(b'{"device":"s","type":"seconds","ts":1,"mode":null}', {"ts_ms": 1000}),
    Sent(b'{"device":"s","type":"seconds","ts":1,"it\'s":"x"}', reason="wrong_type", detail="it's is no double but string"),
    Sent(b'{"device":"s","type":"seconds","ts":1,"mode":"x"}', reason="schema", detail="mode is x is not allowed"),
    # What names none of the types is a reading.
    Sent(b'{"device":"d","type":"lamp","seq":1,"ts":2,"temperature":20,"t":"x","rssi":-70.0}', {"type": "lamp", "temperature": 20.0, "rssi": -70, "seq": 1}),
    Sent(b'{"device":"d","type":"lamp","ts":2}', reason="missing_field", detail="seq"),
    Sent(b'{"device":"d","ts":2}', reason="missing_field", detail="type"),
    Sent(b'{"device":"d","type":"meter","ts":2}', reason="schema", detail="type meter is not JSON"),
    # Avro.
    Sent(marked(METER, **METER_NOW), {"type": "meter", **READ_NOW}, topic="meters"),
    Sent(marked(METER, **METER_NOW | {"line": {"amps": 0.5}}), {"amps": 0.5}, topic="meters"),
    Sent(marked(METER_1, **METER_OLD), {**READ_NOW, "temperature": pytest.approx(26.85), "energy": 0.5}, topic="meters"),
    Sent(marked(METER, **METER_NOW)[:-2], reason="not_avro", topic="meters"),
    Sent(marked(METER, **METER_NOW) + b"\0", reason="not_avro", detail="1 bytes are left over", topic="meters"),
    Sent(boiler(), reason="not_avro", detail="single_object", topic="meters"),
    Sent(b"\xc3\x01" + b"\0" * 8 + b"x", reason="schema", detail="no version", topic="meters"),
    Sent(b"", reason="empty", topic="meters"),
    Sent(None, reason="empty", topic="meters"),
    Sent(marked(METER, **METER_NOW | {"energy": math.nan}), reason="out_of_range", detail="energy", topic="meters"),
    Sent(marked(METER, **METER_NOW | {"ts": -1}), reason="out_of_range", detail="ts", topic="meters"),
    Sent(avro(METER, **METER_NOW), {"type": "raw", **READ_NOW}, topic="raw"),
    Sent(b"\0\0\0\0\7" + avro(METER, **METER_NOW), {"type": "registered", **READ_NOW}, topic="registered"),
    Sent(b"\0\0\0\0\3" + avro(METER_1, **METER_OLD), {"energy": 0.5, "seq": 9}, topic="registered"),
    Sent(b"\0\0\0\0\5" + avro(METER_1, **METER_OLD), reason="schema", detail="schema id 5", topic="registered"),
    Sent(avro(METER_1, **METER_OLD), {"type": "epoch", "ts_ms": 77_000}, topic="epochs"),
    Sent(avro(METER_1, **METER_OLD | {"ts": -(2**63)}), reason="out_of_range", detail=f"ts is {-(2**63)}", topic="epochs"),
    # Protobuf.
    Sent(position(tracker_file(), device="p", seq=4, time={"seconds": 2, "nanos": 5_000_000}, speed=1.5, altitude=3), {"type": "tracker", "device": "p", "seq": 4, "ts_ms": 2005, "speed": 1.5, "altitude": 3.0, "moving": None}, topic="trackers"),
    Sent(position(tracker_file(), device="p", time={"seconds": 2}, moving=False), {"seq": 0, "speed": 0.0, "moving": False}, topic="trackers"),
    Sent(position(tracker_file(), device="p", seq=2**63, time={"seconds": 2}), reason="out_of_range", topic="trackers"),
    Sent(position(tracker_file(), device="p"), reason="missing_field", detail="time", topic="trackers"),
    Sent(position(tracker_file(FieldDescriptorProto.TYPE_STRING), device="p", time={"seconds": 2}, speed="fast"), reason="wrong_type", detail="speed", topic="trackers"),
    Sent(b"\xff\xff\xff", reason="not_protobuf", topic="trackers"),
]  # fmt: skip


def test_each_record_is_decoded_or_told_why_not(spark: SparkSession, schemas: DeviceSchemas) -> None:
    rows = decode(spark, schemas, CASES)
    assert len(rows) == len(CASES)
    for sent, row in zip(CASES, rows, strict=True):
        case = f"{sent.value!r} became {row}"
        assert row["reason"] == sent.reason, case
        assert (sent.detail or "") in (row["detail"] or ""), case
        for name, value in sent.expected.items():
            assert row[name] == value, f"{name}: {case}"


def test_a_time_of_kafkas_after_the_year_9999_is_bad(spark: SparkSession, schemas: DeviceSchemas) -> None:
    """Readers of silver in Python cannot have it: the report and the jobs devices and anomalies would end with it."""
    late = as_records(spark, [Sent(boiler())]).withColumn("timestamp", F.timestamp_millis(F.lit(253_402_300_800_000)))
    said = [(row.reason, row.detail) for row in Decoding(schemas).decoded(late).select("reason", "detail").collect()]
    assert said == [("out_of_range", "Kafka's timestamp is 253402300800000")]


def test_the_columns_are_kafkas_then_ours(spark: SparkSession, schemas: DeviceSchemas) -> None:
    records = as_records(spark, [])
    own = ["device", "type", "seq", "ts_ms", *schemas.signals, "reason", "detail", GOOD]
    made = Decoding(schemas).decoded(records)
    assert made.columns == [*records.columns, *own]
    assert [made.schema[name].dataType for name in schemas.signals] == [it.dataType for it in schemas.columns]


def test_json_alone_needs_no_python(spark: SparkSession, schemas: DeviceSchemas) -> None:
    def plan(of: DeviceSchemas) -> str:
        made: Any = Decoding(of).decoded(as_records(spark, CASES))
        return str(made._jdf.queryExecution().executedPlan().toString())

    assert "ArrowEvalPython" in plan(schemas)
    plain = plan(load_device_schemas(None))
    assert "Python" not in plain
    assert plain.count("from_json") == 1, "a record is parsed once"


def test_what_silver_makes_of_a_record_parses_it_once(spark: SparkSession) -> None:
    made: Any = registered_rows(as_records(spark, CASES), Settings(), load_device_schemas(None))
    assert str(made._jdf.queryExecution().executedPlan().toString()).count("from_json") == 1


# An independent decoder: json, and jsonschema on what JSON's null leaves.

TOKENS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.floats(allow_nan=True, allow_infinity=False),
    st.sampled_from(["off", "5", "true", "-1", "[", "{}", "", "b-1", "heating", "\\", "ü", '"']),
    st.text(max_size=10),
    st.just([1]),
    st.just({"p": 1}),
)
PAYLOADS = st.builds(
    lambda base, changes, hw, cut: json.dumps({**base, **changes, **({"hw": hw} if hw is not None else {})}, ensure_ascii=False).encode("utf-8", "surrogatepass")[:cut],
    st.just({"device": "b-1", "type": "boiler", "seq": 1, "ts": 5, "t": 20.5}),
    st.dictionaries(st.sampled_from(["device", "seq", "ts", "t", "state", "count", "at", "T", "extra"]), TOKENS, max_size=2),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["p", "on", "q"]), TOKENS, max_size=2), TOKENS),
    st.sampled_from([None] * 9 + [-1]),
)  # fmt: skip


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return value


def expected_of(payload: bytes) -> dict[str, Any] | None:
    """The columns of a boiler's payload, or None if it is bad."""

    def never(word: str) -> None:
        raise ValueError(word)

    try:
        body = without_nulls(json.loads(payload.decode(), parse_constant=never))
        jsonschema.validate(body, BOILER)
    except (ValueError, jsonschema.ValidationError):
        return None
    hw = body.get("hw", {})
    numbers = [body["t"], hw.get("p", 0), body.get("count", 0)]
    if any(not math.isfinite(float(one)) for one in numbers) or abs(body.get("count", 0)) > 2**53:
        return None
    # JSON Schema takes 1.0 for an integer; a sequence number or a time that is not written as one is not taken.
    if any(isinstance(body.get(name, 0), float) or not -(2**63) <= body.get(name, 0) < 2**63 for name in ("seq", "ts")):
        return None
    # psi to Pa is a fraction of two whole numbers, so the product is infinite a little before the result is.
    pressure = hw["p"] * 8896443230521.0 / 1290320000.0 if "p" in hw else None
    if not 0 <= body["ts"] <= 253_402_300_799_999 or (pressure is not None and not math.isfinite(pressure)):
        return None
    return {
        "device": body["device"],
        "seq": body.get("seq"),
        "ts_ms": body["ts"],
        "temperature": pytest.approx((body["t"] - 32) * 5 / 9, rel=1e-12, abs=1e-12),
        "pressure": None if pressure is None else pytest.approx(pressure, rel=1e-12),
        "on": hw.get("on"),
        "state": body.get("state"),
        "count": body.get("count"),
    }


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Examples for one run of Spark: a run for each would take longer than all records of it."""
    found: list[Any] = []

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(strategy)
    def collect(one: Any) -> None:
        found.append(one)

    collect()
    return found


def test_json_is_judged_as_by_an_independent_decoder(spark: SparkSession, schemas: DeviceSchemas) -> None:
    payloads = drawn(PAYLOADS, 1500 if FULL else 400)
    rows = decode(spark, schemas, [Sent(payload) for payload in payloads])
    good = sum(row["reason"] is None for row in rows)
    # How the examples are spread is hypothesis' own business: 146 good ones of 1,500 were drawn once.
    assert min(good, len(rows) - good) >= 20, f"{good} of {len(rows)} are good: what do they show?"
    for payload, row in zip(payloads, rows, strict=True):
        expected = expected_of(payload)
        assert (row["reason"] is None) == (expected is not None), f"{payload!r} became {row}"
        for name, value in (expected or {}).items():
            assert row[name] == value, f"{name} of {payload!r} became {row}"


METERS = st.fixed_dictionaries(
    {
        "device": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "seq": st.integers(-(2**63), 2**63 - 1),
        "ts": st.integers(0, 253_402_300_799_999),
        "temperature": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "energy": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=2),
        "line": st.none(),
    }
)


def test_avro_is_read_as_it_was_written_and_noise_ends_nothing(spark: SparkSession, schemas: DeviceSchemas) -> None:
    written, noise = drawn(METERS, 300), drawn(st.binary(min_size=1, max_size=60), 300)
    sent = [Sent(avro(METER, **one), topic="raw") for one in written]
    sent += [Sent(one, topic=topic) for one in noise for topic in ("raw", "meters", "trackers")]
    rows = decode(spark, schemas, sent)
    for one, row in zip(written, rows, strict=False):
        assert row["reason"] is None, f"{one} became {row}"
        assert (row["device"], row["seq"], row["ts_ms"], row["energy"]) == (
            one["device"],
            one["seq"],
            one["ts"],
            one["energy"],
        )
        kelvin = one["temperature"]
        assert row["temperature"] == (None if kelvin is None else pytest.approx(kelvin - 273.15, rel=1e-12))
    for one, row in zip(sent[len(written) :], rows[len(written) :], strict=True):
        assert row["reason"] is not None or row["ts_ms"] is not None, f"{one} became {row}"


def test_a_type_in_several_versions(spark: SparkSession, tmp_path: Path) -> None:
    """The schema of yesterday's readings had one field less, and whole numbers where fractions are allowed now."""
    (tmp_path / "schemas.toml").write_text("other_types = 'quarantine'\n[types.a]")

    def load(**properties: Any) -> DeviceSchemas:
        times = {"device": {"type": "string"}, "ts": {"type": "integer"}}
        (tmp_path / "a.json").write_text(json.dumps({"type": "object", "properties": {**times, **properties}}))
        return load_device_schemas(tmp_path)

    old = b'{"device":"d","type":"a","ts":1,"x":5}'
    new = b'{"device":"d","type":"a","ts":1,"x":5.5,"y":"on"}'
    other = b'{"device":"d","type":"a","ts":1,"x":"5"}'
    unknown = b'{"device":"d","type":"b","ts":1,"x":5}'
    everything = [Sent(value) for value in (old, new, other, unknown)]

    before = decode(spark, load(x={"type": "integer"}), everything)
    assert [row["reason"] for row in before] == [None, "wrong_type", "wrong_type", "unknown_type"]
    assert before[0]["x"] == 5

    after = decode(spark, load(x={"type": "number"}, y={"type": "string"}), everything)
    assert [row["reason"] for row in after] == [None, None, "wrong_type", "unknown_type"]
    assert [(row["x"], row["y"]) for row in after[:2]] == [(5.0, None), (5.5, "on")]
    assert after[3]["detail"] == "type b has no schema"
