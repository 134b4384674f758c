"""Of one MQTT connection each entry of commands has a part, and none while another member may own its partitions."""

import pytest

from bridge.commands.ports import Outgoing, Published
from gateway.components.command_share import LinkShare

MESSAGE = Outgoing("t", b"", 1)


class Link:
    """A connection with a window."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.waiting: list[Published] = []
        self.is_too_large = False

    @property
    def room(self) -> int:
        return self.window - len(self.waiting)

    def publish(self, _message: Outgoing, published: Published) -> None:
        if self.is_too_large:
            raise ValueError
        self.waiting.append(published)

    def answer(self) -> None:
        self.waiting.pop(0)(0)


def shares(link: Link, count: int) -> list[LinkShare]:
    return [LinkShare(link, count, lambda: True) for _ in range(count)]  # type: ignore[arg-type]


def fill(share: LinkShare) -> int:
    count = 0
    while share.room > 0:
        share.publish(MESSAGE, lambda _code: None)
        count += 1
    return count


def test_a_single_entry_has_all_room() -> None:
    (share,) = shares(Link(32), 1)
    assert fill(share) == 32


@pytest.mark.parametrize("window", [2, 8, 32, 1000])
def test_an_entry_with_a_backlog_leaves_room_for_others(window: int) -> None:
    link = Link(window)
    busy, other = shares(link, 2)
    fill(busy)
    assert other.room >= max(1, window // 8)
    for _ in range(3 * window):
        link.answer()
        fill(busy)
        assert other.room >= 1
    assert fill(other) >= 1
    while link.waiting:
        link.answer()
    assert busy.room == other.room == window - max(1, window // 8)


def test_what_was_not_sent_takes_no_room() -> None:
    link = Link(8)
    share, _ = shares(link, 2)
    room, link.is_too_large = share.room, True
    with pytest.raises(ValueError):  # noqa: PT011 - the link's own sentence
        share.publish(MESSAGE, lambda _code: None)
    assert share.room == room


def test_there_is_no_room_while_another_member_may_be_the_owner() -> None:
    is_owner = [True]
    share = LinkShare(Link(8), 1, lambda: is_owner[0])  # type: ignore[arg-type]
    assert share.room == 8
    is_owner[0] = False
    assert share.room == 0
