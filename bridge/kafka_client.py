"""aiokafka's client, which one silent broker cannot hold up.

aiokafka asks one broker after the other for metadata and gives each the whole request time-out, and it opens one
connection at a time. A frozen broker, which is asked first in one renewal of three, then hides a new leader for 5 s
and more, just when one is looked for. Here the next broker is asked when an answer stays out for HEDGE_S, a broker
that was silent is asked last, and each broker's connection is opened by itself.
"""

from __future__ import annotations

__all__ = ["Client"]

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
import structlog
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.protocol.metadata import MetadataRequest

from config.errors import forget_frames

if TYPE_CHECKING:
    from collections.abc import Iterable

log = structlog.get_logger("kafka")

HEDGE_S = 0.5  # a metadata answer takes milliseconds; asking a second broker in vain costs one small request
_BOOTSTRAP = "bootstrap"  # aiokafka's name for the connection it keeps until a broker is known
_NO_LOCK = contextlib.nullcontext()


class Client(AIOKafkaClient):  # type: ignore[misc]
    """``AIOKafkaClient`` with three of its methods replaced; contract tests watch that it still calls them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._connecting: dict[object, asyncio.Lock] = {}
        self._asking: dict[object, asyncio.Task[Any]] = {}  # a metadata request under way, by node
        self._silent: set[object] = set()  # nodes that left the last one without an answer

    @property
    def _get_conn_lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        return _NO_LOCK  # ours is one for each node, taken below

    async def _get_conn(self, node_id: object, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        connection = self._conns.get((node_id, group))
        if connection is not None and connection.connected():
            return connection
        async with self._connecting.setdefault((node_id, group), asyncio.Lock()):
            return await super()._get_conn(node_id, group=group, no_hint=no_hint)

    async def _metadata_update(self, cluster_metadata: Any, topics: Iterable[str]) -> bool:
        try:
            # False, or asking would make a missing topic wherever brokers create what they are asked for.
            answer = await self._ask_for_metadata(MetadataRequest(list(topics) if topics else None, False))
        except Exception:  # the task that renews metadata would end with it, and nobody would notice a new leader
            log.exception("metadata_defect")
            return False
        if answer is None:
            cluster_metadata.failed_update(None)
            return False
        if not answer.brokers:  # a cluster that is starting
            return False
        cluster_metadata.update_metadata(answer)
        bootstrap = self._conns.pop((_BOOTSTRAP, ConnectionGroup.DEFAULT), None)
        if bootstrap is not None:
            bootstrap.close()
        return True

    async def _ask_for_metadata(self, request: MetadataRequest) -> Any:
        """The first answer of any broker, or None when all have failed."""
        nodes: list[object] = [broker.nodeId for broker in self.cluster.brokers()]
        if (_BOOTSTRAP, ConnectionGroup.DEFAULT) in self._conns:
            nodes.append(_BOOTSTRAP)
        random.shuffle(nodes)
        nodes.sort(key=lambda node: node in self._silent)  # stable: chance decides among the others
        waiting: dict[asyncio.Task[Any], object] = {}
        while nodes or waiting:
            if nodes:
                node = nodes.pop(0)
                if node in self._asking:
                    continue  # its last answer is still due, and would come before this one
                task = self._asking[node] = asyncio.get_running_loop().create_task(self._ask(node, request))
                task.add_done_callback(partial(self._asked, node))
                waiting[task] = node
            done, _ = await asyncio.wait(
                waiting, timeout=HEDGE_S if nodes else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                node = waiting.pop(task)
                if (answer := task.result()) is not None:
                    self._silent = (self._silent | set(waiting.values())) - {node}
                    return answer
                self._silent.add(node)
        return None

    async def _ask(self, node: object, request: MetadataRequest) -> Any:
        connection = await self._get_conn(node)
        if connection is None:
            return None
        try:
            return await connection.send(request)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            forget_frames(error)
            log.warning("metadata_failed", broker=node, error=str(error) or type(error).__name__, repeat_key=node)
            return None

    def _asked(self, node: object, _task: asyncio.Task[Any]) -> None:
        del self._asking[node]

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        if self._asking:
            await asyncio.wait(list(self._asking.values()))
        await super().close()
