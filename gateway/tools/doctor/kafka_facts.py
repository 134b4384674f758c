"""What the Kafka brokers answer, each asked by itself: a silent one costs its own time-out and nobody else's."""

from __future__ import annotations

__all__ = ["Asking", "BrokerFacts", "Known", "Place", "leads"]

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bridge.kafka.probe import ProbeError, open_link
from config.values.addresses import parse_kafka_address
from gateway.tools.doctor.endpoint import Endpoint, reach

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from bridge.kafka.login import KafkaLogin
    from bridge.kafka.probe import BrokerLink, Layout, Produced
    from config.settings import Settings

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""

_APART: Final = 24  # partitions that are asked one by one where all at once got no answer
_APART_AT_A_TIME: Final = 6


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One address. ``node`` is its broker's number where that is known; ``bootstrap`` whether settings name it.

    ``login`` is what stood in the way of the login, ``login_s`` what it took; ``produced`` the answer to the batch that
    a leader must refuse, ``unproduced`` why there is none; ``stalled`` are the partitions that gave none when asked one
    by one, ``unasked`` those that were not.
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
        """Whether it let us in."""
        return self.endpoint is not None and self.endpoint.reached and self.login is None


@dataclass(frozen=True, slots=True)
class Known:
    """``layout`` is the metadata of the first broker that gave it, ``source`` that broker; None, and ``why`` not.
    ``wanted`` are the topics that settings name, and what each is for; ``ours`` those and the ones that a route's
    template may make, as far as Kafka has them."""

    wanted: Mapping[str, str]
    layout: Layout | None = None
    source: str = ""
    ours: tuple[str, ...] = ()
    why: str = ""


def leads(layout: Layout, node: int, topics: Iterable[str]) -> list[Place]:
    """The partitions of these topics that a broker leads."""
    return [
        (topic, partition.number)
        for topic in topics
        for partition in layout.topics.get(topic, ())
        if partition.leader == node
    ]


class Asking:
    """Asks the brokers: ``learn`` what the cluster is, then ``examine`` each. Close it.

    Takes four time-outs at most, whatever they do."""

    def __init__(self, settings: Settings, login: KafkaLogin, timeout_s: float) -> None:
        self._login, self._client_id, self._timeout_s = login, f"{settings.instance}-doctor", timeout_s
        self._bootstrap = [parse_kafka_address(text) for text in settings.kafka.bootstrap_servers]
        self._met: dict[tuple[str, int], asyncio.Task[tuple[BrokerFacts, BrokerLink | None]]] = {}
        self._links: list[BrokerLink] = []

    async def learn(self, wanted: Mapping[str, str], allowed: Callable[[str], bool]) -> Known:
        """What the first broker that answers says of the cluster. ``allowed``: whether a route's template may make a
        topic of this name."""
        starts = [self._meet(host, port) for host, port in self._bootstrap]
        layout, source, why = await self._layout(starts, wanted)
        topics = layout.topics if layout is not None else ()
        ours = tuple(sorted(topic for topic in topics if topic in wanted or allowed(topic)))
        return Known(wanted, layout, source, ours, why)

    async def examine(self, known: Known, fenced: Awaitable[Sequence[tuple[int, str, int]]]) -> tuple[BrokerFacts, ...]:
        """Each bootstrap address, each broker of the cluster, and those that are ``fenced`` (number, host, port), which
        metadata leave out."""
        layout = known.layout
        brokers = layout.brokers if layout is not None else ()
        nodes = {(one.host, one.port): one.node for one in brokers}
        places = [(host, port) for host, port in self._bootstrap]

        def begin(host: str, port: int) -> asyncio.Task[BrokerFacts]:
            node = nodes.get((host, port))
            led = leads(layout, node, known.ours) if layout is not None and node is not None else []
            return asyncio.create_task(self._examine(host, port, led))

        asked = {place: begin(*place) for place in dict.fromkeys([*places, *nodes])}
        # Who is fenced may be told late, when it is the controller that hangs: nobody else waits for that.
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
        """Reach it and log in, once for each address."""
        if (host, port) not in self._met:
            self._met[host, port] = asyncio.create_task(self._met_at(host, port))
        return self._met[host, port]

    async def _met_at(self, host: str, port: int) -> tuple[BrokerFacts, BrokerLink | None]:
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
        """The first that any of them has; why there is none."""
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
            # A list of all leaves out in silence what we may not describe; asked for by name it says so.
            return replace(listed, errors=named.errors, topics={**listed.topics, **named.topics}), facts.name, ""
        return None, "", why

    async def _examine(self, host: str, port: int, led: list[Place]) -> BrokerFacts:
        facts, link = await self._meet(host, port)
        if link is None or not led:
            return facts
        try:
            return replace(facts, produced=await link.refuse(led))
        except ProbeError as error:
            facts = replace(facts, unproduced=error)
            return await self._apart(facts, led) if error.kind == "silent" else facts

    async def _apart(self, facts: BrokerFacts, led: list[Place]) -> BrokerFacts:
        """Which of its partitions hold the others up: each asked alone, over a connection of its own."""
        turns = asyncio.Semaphore(_APART_AT_A_TIME)
        end = asyncio.get_running_loop().time() + self._timeout_s

        async def ask(place: Place) -> bool | None:
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
