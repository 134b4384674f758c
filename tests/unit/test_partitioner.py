"""The partition of a key is the one every other Kafka client chooses."""

import random

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from bridge.produce.partitioner import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "java"),
    [  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert partition_for(key, 12) == (java & 0x7FFFFFFF) % 12


@given(st.binary(max_size=80), st.integers(1, 1000))
def test_murmur2_agrees_with_aiokafka(key: bytes, partitions: int) -> None:
    theirs = aiokafka_murmur2(key)
    assert murmur2(key) == theirs & 0xFFFFFFFF
    assert partition_for(key, partitions) == (theirs & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("size", [0, 1, 3, 4, 255, 256, 257, 259, 260, 263, 264, 4096, 65_535])
def test_murmur2_at_the_sizes_where_its_path_changes(size: int) -> None:
    key = random.Random(size).randbytes(size)
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


def test_murmur2_stays_right_when_more_heads_come_than_are_kept() -> None:
    for number in range(3000):
        key = random.Random(number % 2500).randbytes(20 + number % 40)
        assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


def test_keys_of_devices_spread_over_all_partitions() -> None:
    counts = [0] * 12
    for number in range(12_000):
        counts[partition_for(b"devices/sensor-%04d/telemetry" % number, 12)] += 1
    assert min(counts) > 900
    assert max(counts) < 1100
