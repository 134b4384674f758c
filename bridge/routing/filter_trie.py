"""A tree of topic filters by level: finds the first that matches a topic, and those that cover or overlap a filter."""

import sys
from typing import Final, Generic, TypeVar

from config.values.topic_filters import split_filter

_NEVER: Final = sys.maxsize
T = TypeVar("T")


class _Node:
    """One level. Ranks are positions in the order of adding; ``lowest`` is the best rank at or below this node."""

    __slots__ = ("children", "lowest", "plus", "rank", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}  # by level
        self.plus: _Node | None = None  # below a '+'
        self.rank = _NEVER  # of a filter that ends here
        self.rest = _NEVER  # of a filter that goes on with '#'
        self.lowest = _NEVER  # rank here and below


class FilterTrie(Generic[T]):
    """Finds the first added filter that matches a topic. Its time depends on the filters, not on the topic's depth."""

    def __init__(self) -> None:
        self._root = _Node()
        self._values: list[T] = []
        self._depth = 1

    def add(self, filter_: str, value: T) -> None:
        """Add a valid filter (without ``$share/``) behind the others."""
        rank = len(self._values)
        self._values.append(value)
        levels = filter_.split("/")
        self._depth = max(self._depth, len(levels))
        node = self._root
        node.lowest = min(node.lowest, rank)
        for level in levels:
            if level == "#":
                node.rest = min(node.rest, rank)
                return
            if level == "+":
                node.plus = node.plus or _Node()
                node = node.plus
            else:
                node = node.children.setdefault(level, _Node())
            node.lowest = min(node.lowest, rank)
        node.rank = min(node.rank, rank)

    def first(self, topic: str) -> T | None:
        """The value of the first added filter that matches, or None. Called once per distinct topic; some 1 µs."""
        levels = topic.split("/", self._depth)  # levels below the deepest filter do not matter
        root = self._root
        best = _NEVER
        nodes: list[_Node] = []
        child = root.children.get(levels[0])
        if child is not None:
            nodes.append(child)
        if not topic.startswith("$"):
            best = root.rest
            if root.plus is not None:
                nodes.append(root.plus)
        for level in levels[1:]:
            after: list[_Node] = []
            for node in nodes:
                if node.rest < best:  # noqa: PLR1730 - a call to min() here is a quarter of the function's time
                    best = node.rest
                child = node.children.get(level)
                if child is not None and child.lowest < best:
                    after.append(child)
                child = node.plus
                if child is not None and child.lowest < best:
                    after.append(child)
            nodes = after
            if not nodes:
                break
        for node in nodes:
            if node.rest < best:  # noqa: PLR1730
                best = node.rest
            if node.rank < best:  # noqa: PLR1730
                best = node.rank
        return None if best == _NEVER else self._values[best]

    def covering(self, filter_: str) -> list[T]:
        """The values of all filters that cover ``filter_``, itself included, in the order of adding."""
        levels, open_ended = split_filter(filter_)
        special = levels[0].startswith("$")
        found = [] if special else [self._root.rest]
        nodes = [self._root]
        for number, level in enumerate(levels):
            after: list[_Node] = []
            for node in nodes:
                if level != "+" and level in node.children:
                    after.append(node.children[level])
                if node.plus is not None and not (special and number == 0):
                    after.append(node.plus)
            nodes = after
            found += [node.rest for node in nodes]
        if not open_ended:
            found += [node.rank for node in nodes]
        return [self._values[rank] for rank in sorted(found) if rank != _NEVER]

    def meeting(self, filter_: str) -> list[T]:
        """The values of filters that may share topics with ``filter_``, in the order of adding, itself included.

        The result has every filter that shares a topic, and perhaps others:
        ``config.values.topic_filters.intersection`` decides.
        """
        levels, open_ended = split_filter(filter_)
        found = [self._root.rest]
        nodes = [self._root]
        for level in levels:
            after: list[_Node] = []
            for node in nodes:
                if level == "+":
                    after += node.children.values()
                elif level in node.children:
                    after.append(node.children[level])
                if node.plus is not None:
                    after.append(node.plus)
            nodes = after
            found += [node.rest for node in nodes]
        found += [node.rank for node in nodes]
        while open_ended and nodes:
            nodes = [child for node in nodes for child in (*node.children.values(), node.plus) if child is not None]
            found += [rank for node in nodes for rank in (node.rank, node.rest)]
        return [self._values[rank] for rank in sorted(found) if rank != _NEVER]
