"""Facts from each Kafka broker by itself, so that a silent one delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bridge.kafka.probe import BrokerLink, Layout, ProbeError, Produced, open_link
from config.values.addresses import parse_kafka_address
from gateway.tools.doctor.endpoint import Endpoint, reach

if TYPE_CHECKING:
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""

_APART: Final = 24  # most partitions that are asked one by one after all together gave no answer
_APART_AT_A_TIME: Final = 6


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One address. ``node`` is its broker's number, if known; ``bootstrap``: settings name it.

    ``login`` is the failure of the login, ``login_s`` its duration. ``produced`` is the answer to the batch that a
    leader must refuse, ``unproduced`` the reason for none. ``stalled`` partitions gave no answer when asked one by one;
    ``unasked`` ones were not asked.
    """

    host: str
    port: int
    node: int | None = None
    bootstrap: bool = False
    fenced: bool = False
    endpoint: Endpoint | None = None
    login_s: float = 0.0
    login: ProbeError | None = None
    produced: Produced | None = None
    unproduced: ProbeError | None = None
    stalled: tuple[Place, ...] = ()
    unasked: tuple[Place, ...] = ()

    @property
    def name(self) -> str:
        address = f"{self.host}:{self.port}"
        return address if self.node is None else f"broker {self.node} ({address})"

    @property
    def answers(self) -> bool:
        """Whether it accepted the login."""
        return self.endpoint is not None and self.endpoint.reached and self.login is None


@dataclass(frozen=True, slots=True)
class Known:
    """``layout`` is the metadata of the first broker that answered, ``source`` that broker. Without an answer both are
    None, and ``why`` has the reason. ``wanted`` are the topics in the settings, with their purposes. ``ours`` are these
    and topics of templates, as far as they exist."""

    wanted: Mapping[str, str]
    layout: Layout | None = None
    source: str = ""
    ours: tuple[str, ...] = ()
    why: str = ""


def led_by(layout: Layout, node: int, topics: Iterable[str]) -> list[Place]:
    return [
        (topic, partition.number)
        for topic in topics
        for partition in layout.topics.get(topic, ())
        if partition.leader == node
    ]


class Asking:
    """Asks the brokers: first ``learn`` the cluster, then ``examine`` each; finally ``close``.

    Takes at most four time-outs."""

    def __init__(self, settings: Settings, login: KafkaLogin, timeout_s: float) -> None:
        self._login, self._client_id, self._timeout_s = login, f"{settings.instance}-doctor", timeout_s
        self._bootstrap = [parse_kafka_address(text) for text in settings.kafka.bootstrap_servers]
        self._met: dict[tuple[str, int], asyncio.Task[tuple[BrokerFacts, BrokerLink | None]]] = {}
        self._links: list[BrokerLink] = []

    async def learn(self, wanted: Mapping[str, str], allowed: Callable[[str], bool]) -> Known:
        """The cluster as the first broker that answers describes it. ``allowed``: whether a route's template may make a
        topic of this name."""
        starts = [self._meet(host, port) for host, port in self._bootstrap]
        layout, source, why = await self._layout(starts, wanted)
        topics = layout.topics if layout is not None else ()
        ours = tuple(sorted(topic for topic in topics if topic in wanted or allowed(topic)))
        return Known(wanted, layout, source, ours, why)

    async def examine(self, known: Known, fenced: Awaitable[Sequence[tuple[int, str, int]]]) -> tuple[BrokerFacts, ...]:
        """The facts of each bootstrap address, each broker in the metadata, and each ``fenced`` one (number, host,
        port)."""
        layout = known.layout
        brokers = layout.brokers if layout is not None else ()
        nodes = {(one.host, one.port): one.node for one in brokers}
        places = [(host, port) for host, port in self._bootstrap]

        def begin(host: str, port: int) -> asyncio.Task[BrokerFacts]:
            node = nodes.get((host, port))
            led = led_by(layout, node, known.ours) if layout is not None and node is not None else []
            return asyncio.create_task(self._examine(host, port, led))

        asked = {place: begin(*place) for place in dict.fromkeys([*places, *nodes])}
        # A hanging controller delays the list of fenced brokers; the others do not wait for it.
        late = {(host, port): node for node, host, port in await fenced}
        asked |= {place: begin(*place) for place in late if place not in asked}
        found = await asyncio.gather(*asked.values())
        return tuple(
            replace(one, node=nodes.get(place, late.get(place)), bootstrap=place in places, fenced=place in late)
            for place, one in zip(asked, found, strict=True)
        )

    async def close(self) -> None:
        for task in self._met.values():
            task.cancel()
        await asyncio.gather(*self._met.values(), return_exceptions=True)
        for link in self._links:
            link.close()

    # --- one broker --------------------------------------------------------------------------------

    def _meet(self, host: str, port: int) -> asyncio.Task[tuple[BrokerFacts, BrokerLink | None]]:
        """Connect and log in, once for each address."""
        if (host, port) not in self._met:
            self._met[host, port] = asyncio.create_task(self._log_in(host, port))
        return self._met[host, port]

    async def _log_in(self, host: str, port: int) -> tuple[BrokerFacts, BrokerLink | None]:
        """What is known of the broker after a login, and the connection if it was let in."""
        context = self._login.context()
        endpoint = await reach(host, port, self._timeout_s, None if context is None else lambda: context)
        facts = BrokerFacts(host, port, endpoint=endpoint)
        if not endpoint.reached:
            return facts, None
        try:
            link = await self._open(host, port)
        except ProbeError as error:
            return replace(facts, login=error), None
        return replace(facts, login_s=link.seconds), link

    async def _open(self, host: str, port: int) -> BrokerLink:
        link = await open_link(host, port, self._login, self._client_id, self._timeout_s)
        self._links.append(link)
        return link

    async def _layout(
        self, starts: Sequence[asyncio.Task[tuple[BrokerFacts, BrokerLink | None]]], wanted: Mapping[str, str]
    ) -> tuple[Layout | None, str, str]:
        """The first metadata of any broker, and that broker's name; else None and the reason."""
        why = "no broker of kafka.bootstrap_servers lets the gateway in (login)"
        for start in asyncio.as_completed(starts):
            facts, link = await start
            if link is None:
                continue
            try:
                named = await link.layout(list(wanted))
                listed = await link.layout(None)
            except ProbeError as error:
                why = f"{facts.name} lets us in and does not describe the cluster ({error})"
                continue
            if not listed.brokers:
                why = f"{facts.name} lists no broker: the cluster is starting, or it is alone"
                continue
            # A list of all topics silently leaves out hidden ones; by name Kafka reports the missing right.
            return replace(listed, errors=named.errors, topics={**listed.topics, **named.topics}), facts.name, ""
        return None, "", why

    async def _examine(self, host: str, port: int, led: list[Place]) -> BrokerFacts:
        """What is known of the broker after a login, and a produce request to the partitions that it leads."""
        facts, link = await self._meet(host, port)
        if link is None or not led:
            return facts
        try:
            return replace(facts, produced=await link.refuse(led))  # a batch with a wrong checksum to each
        except ProbeError as error:
            facts = replace(facts, unproduced=error)
            return await self._one_by_one(facts, led) if error.kind == "silent" else facts

    async def _one_by_one(self, facts: BrokerFacts, led: list[Place]) -> BrokerFacts:
        """Ask each partition over a connection of its own, to find those that delay the others."""
        turns = asyncio.Semaphore(_APART_AT_A_TIME)
        end = asyncio.get_running_loop().time() + self._timeout_s

        async def ask(place: Place) -> bool | None:
            """Whether the leader answered; None: not asked, since the time was over."""
            async with turns:
                if asyncio.get_running_loop().time() >= end:
                    return None
                try:
                    async with asyncio.timeout_at(end):
                        link = await self._open(facts.host, facts.port)
                        await link.refuse([place])
                except (TimeoutError, ProbeError):
                    return False
                return True

        answers = await asyncio.gather(*(ask(place) for place in led[:_APART]))
        stalled = tuple(place for place, answer in zip(led, answers, strict=False) if answer is False)
        unasked = tuple(place for place, answer in zip(led, answers, strict=False) if answer is None)
        return replace(facts, stalled=stalled, unasked=(*unasked, *led[_APART:]))
