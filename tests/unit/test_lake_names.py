"""Names in SQL: few ranges that leave none out."""

from hypothesis import given
from hypothesis import strategies as st

from streaming.lake.ranges import MOST_RANGES, between, named, text

NAMES = st.sets(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=6), max_size=200
)


@given(NAMES)
def test_the_ranges_are_few_and_have_every_name_between_their_ends(names: set[str]) -> None:
    found = named("t.device", names)
    ordered = sorted(names, key=str.encode)
    step = max(1, -(-len(ordered) // MOST_RANGES))
    ends = [(ordered[at], ordered[min(at + step, len(ordered)) - 1]) for at in range(0, len(ordered), step)]
    assert len(ends) <= MOST_RANGES
    assert found == (" OR ".join(f"t.device BETWEEN {text(a)} AND {text(b)}" for a, b in ends) or "false")
    assert all(any(a.encode() <= name.encode() <= b.encode() for a, b in ends) for name in names)


def test_of_a_name_that_was_no_text_nothing_is_known() -> None:
    """Spark hands its bytes over as U+FFFD, so it lies anywhere."""
    assert named("t.device", ["a", "b\ufffd"]) == "true"


def test_a_name_is_nothing_but_text_to_spark() -> None:
    assert text("it's \\ ${spark.app.name}") == "'it\\'s \\\\ \\u0024{spark.app.name}'"


def test_a_range_with_an_end_that_is_no_text_has_every_name() -> None:
    assert between("key", b"a", "ü".encode()) == "key BETWEEN 'a' AND 'ü'"
    assert between("key", b"a", b"\xff") == between("key", b"\x80", b"z") == "true"
