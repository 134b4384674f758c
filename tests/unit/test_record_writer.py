"""Batches as our writer makes them, beside those of aiokafka's builder and as its reader reads them."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from bridge.kafka import record_writer
from bridge.kafka.record_writer import RecordWriter, varint

HEADER = st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=70))
SIZES = st.sampled_from([0, 1, 63, 64, 4075, 4095, 4096, 8191, 8192, 9000])
CONTENT = st.none() | st.builds(bytes, SIZES)
RECORD = st.tuples(st.integers(0, 1 << 41), CONTENT, CONTENT, st.lists(HEADER, max_size=3))
RECORDS = st.lists(RECORD | RECORD.map(lambda record: (1_700_000_000_000, *record[1:])), min_size=1, max_size=12)

Records = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def both(records: Records, limit: int = 1 << 24, codec: int = 0) -> tuple[bytes, bytes]:
    """The batch of our writer and the one of aiokafka's builder, which take and refuse the same records."""
    ours = RecordWriter(limit, codec)
    theirs = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, limit)
    number = 0
    for record in records:
        taken = ours.append(number, *record)
        assert bool(taken) == bool(theirs.append(number, *record))
        assert ours.size() == theirs.size()
        number += bool(taken)
    for builder in (ours, theirs):
        builder.set_producer_state(7, 1, 42)
    return bytes(ours.build()), bytes(theirs.build())


@given(RECORDS, st.sampled_from([100, 9_000, 1 << 24]))
def test_the_bytes_are_those_of_aiokafka(records: Records, limit: int) -> None:
    ours, theirs = both(records, limit)
    assert ours == theirs


@pytest.mark.parametrize(
    "records",
    [
        [(1_000 + number, b"k", b"", []) for number in range(5_000)],
        *([(1_000, b"k%d" % number, b"v", []) for number in range(count)] for count in (31, 32, 33, 64)),
        [(5, b"k", b"v", [("a", b"b" * size) for size in (4_095, 4_096, *[0] * 5_000)])],
    ],
    ids=[
        "more records than the table has numbers",
        *("about the length of a chunk",) * 4,
        "more headers, and large ones",
    ],
)
def test_batches_at_the_sizes_where_its_path_changes(records: Records) -> None:
    ours, theirs = both(records)
    assert ours == theirs


@pytest.mark.parametrize("timestamps", [(5, -3, 9, 9), (1 << 62, -(1 << 63), (1 << 63) - 1), (-(1 << 63), -5)])
def test_any_timestamps_of_64_bits_are_read_back(timestamps: tuple[int, ...]) -> None:
    writer = RecordWriter(1 << 20, 0)
    for number, timestamp in enumerate(timestamps):
        writer.append(number, timestamp, None, b"", [])
    read = MemoryRecords(bytes(writer.build())).next_batch()
    assert tuple(record.timestamp for record in read) == timestamps
    assert read.max_timestamp == max(timestamps)


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_codec_is_read_back(codec: int) -> None:
    records: Records = [
        (1_000 + number, b"key", b'{"t": %d}' % (number * 7919 % 1000), [("name", b"value")]) for number in range(300)
    ]
    ours, theirs = both(records, codec=codec)
    read = MemoryRecords(ours).next_batch()
    assert read.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in read] == [
        (number, *record) for number, record in enumerate(records)
    ]
    if codec in {0, 2, 3}:  # gzip has a time in it
        assert ours == theirs
    assert len(ours) < 1.1 * len(theirs)


@pytest.mark.parametrize("record", [
    (1 << 63, b"k", b"v", []), (2_000, "k", b"v", []), (2_000, b"k", "v", []),
    (2_000, b"k", b"v", [(b"name", b"value")]), (2_000, b"k", b"v", [("name", "value")]),
    (2_000, b"k", b"v", [("name",)]), (2_000, b"k", b"v", [("\ud800", b"value")]), (2_000, b"k", b"v", None),
    (2_000, b"k", b"v", ()),
])  # fmt: skip
def test_a_wrong_record_leaves_nothing_behind(record: tuple[object, ...]) -> None:
    writer, untouched = RecordWriter(1 << 20, 0), RecordWriter(1 << 20, 0)
    for kept in (writer, untouched):
        kept.append(0, 1_000, b"k", b"v", [])
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        writer.append(1, *record)  # type: ignore[arg-type]
    for kept in (writer, untouched):
        kept.append(1, 1_001, b"k", b"v", [])
    assert writer.build() == untouched.build()


def test_a_record_that_does_not_fit_leaves_nothing_behind() -> None:
    writer = RecordWriter(1_024, 0)
    assert writer.append(0, 1_000, None, b"v" * 5_000, []), "a first record always fits"
    size = writer.size()
    assert writer.append(1, 9_000, None, b"", []) is None
    assert writer.size() == size
    assert MemoryRecords(bytes(writer.build())).next_batch().max_timestamp == 1_000


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_varint_has_seven_bits_a_byte(number: int) -> None:
    data = varint(number)
    rest = sum((byte & 127) << 7 * place for place, byte in enumerate(data))
    assert rest >> 1 ^ -(rest & 1) == number
    assert all(byte > 127 for byte in data[:-1])
    assert data[-1] < 128


def test_names_from_devices_are_forgotten_again() -> None:
    records: Records = [(5, b"k", b"v", [(f"mqtt.user.{number}", b"x")]) for number in range(3_000)]
    records += [(5, b"k", b"v", [(f"{number}" * 20_000, b"x")]) for number in range(10)]
    ours, theirs = both(records)
    assert ours == theirs
    assert len(record_writer._names) <= 1_024
    assert max(map(len, record_writer._names)) < 128, "long ones are not kept at all"
