"""The whole examination: all groups at once, each with a time limit; findings in the order of the groups."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from config.errors import ConfigError, ExitStatus, GatewayError
from gateway.tools.doctor import config_checks, running
from gateway.tools.doctor.model import GROUPS, Findings, Report
from gateway.tools.doctor.threads import Leaving, call

if TYPE_CHECKING:
    from bridge.routing.router import Router
    from config.loading.load import Loaded
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import Cluster
    from gateway.components.outward import Outward
    from gateway.tools.doctor.kafka_facts import Known
    from gateway.tools.doctor.mqtt_facts import Device

log = structlog.get_logger("doctor")

LONGEST_S: Final = 28.0  # with start and output half a minute


@dataclass(frozen=True, slots=True)
class Options:
    """``only`` are the groups of checks, empty for all. ``timeout_s`` is for each answer. ``device`` are credentials to
    test as; ``groups`` are consumer groups to check."""

    only: frozenset[str] = frozenset()
    timeout_s: float = 5.0
    device: Device | None = None
    groups: tuple[str, ...] = ()

    def wants(self, group: str) -> bool:
        return not self.only or group in self.only


async def examine(loaded: Loaded, options: Options) -> Report:
    """Run the checks of ``options``, in at most LONGEST_S. Needs an event loop of its own, because hanging threads stay
    behind at its end."""
    asyncio.get_running_loop().set_default_executor(Leaving())
    return await _Examination(loaded, options).run()


class _Examination:
    def __init__(self, loaded: Loaded, options: Options) -> None:
        self._loaded, self._options = loaded, options
        self._settings = loaded.settings
        self._found: dict[str, Findings] = {group: Findings(group) for group in GROUPS}
        self._running = running.RunningFacts()
        self._told: asyncio.Task[None] | None = None  # done when the running gateway has answered, or does not
        self._router: Router | None = None
        self._recorded: str | None = None  # the Kafka cluster of the data directory
        self._began = time.monotonic()

    async def run(self) -> Report:
        """Examine the wanted groups at the same time. What fails becomes a finding of its group."""
        from gateway.components.outward import Outward

        settings, options = self._settings, self._options
        config = self._found["config"]
        config_checks.judge_settings(config, self._loaded)
        self._router = config_checks.judge_router(config, self._loaded)
        self._recorded = config_checks.judge_identity(config, settings.data_dir, settings.instance)
        config_checks.own_certificates(config, settings)
        self._running = running.find(settings.data_dir)
        outward = Outward(settings)
        started = await self._start(outward)
        try:
            self._told = asyncio.create_task(self._ask_running())
            groups: dict[str, Callable[[], Awaitable[None]]] = {
                "config": lambda: self._tokens(outward if started else None),
                "running": self._look_at_running,
                "host": self._look_at_host,
                "mqtt": lambda: self._look_at_mqtt(outward),
                "emqx": self._look_at_emqx,
                "kafka": lambda: self._look_at_kafka(outward),
            }
            await asyncio.gather(*(self._within(name, look) for name, look in groups.items() if options.wants(name)))
        finally:
            if self._told is not None:
                self._told.cancel()
            await outward.stop(0)
        checks = [check for group, found in self._found.items() if options.wants(group) for check in found]
        return Report(tuple(checks), time.monotonic() - self._began)

    @property
    def _workers(self) -> int:
        return self._running.worker_count(self._settings)

    async def _start(self, outward: Outward) -> bool:
        """Start the token sources. Returns False if no token can ever come."""
        try:
            await outward.start()
        except GatewayError as error:
            self._found["config"].of("token").fail(
                str(error), "Correct the setting that it names.", status=error.exit_status
            )
            return False
        return True

    async def _within(self, group: str, look: Callable[[], Awaitable[None]]) -> None:
        """Run a group's checks, within what is left of ``LONGEST_S``. A failure becomes a finding of the group."""
        found = self._found[group]
        try:
            async with asyncio.timeout(LONGEST_S - (time.monotonic() - self._began)):
                await look()
        except TimeoutError:
            found.of("time").fail(
                f"The checks of this group were not done within {LONGEST_S:g} s; what is above was.",
                f"Try it alone, with less patience: gateway doctor --only {group} --timeout 2",
                status=ExitStatus.UNAVAILABLE,
            )
        except ConfigError as error:
            found.of("settings").fail(str(error), "Correct the setting that it names.", status=ExitStatus.CONFIG)
        except Exception as error:  # the other groups' findings are still useful
            log.exception("doctor_defect", group=group)
            found.of("defect").fail(
                f"The examination itself failed here ({type(error).__name__}: {error}); what is above was done.",
                "This is a defect of the gateway's: report it with what stands on standard error.",
            )

    async def _ask_running(self) -> None:
        self._running = await running.gather(self._running, self._settings.http, self._options.timeout_s)

    # --- the groups --------------------------------------------------------------------------------

    async def _tokens(self, outward: Outward | None) -> None:
        if outward is None:  # no token can ever come, which is reported
            return
        names = {"mqtt": "mqtt.token", "kafka": "kafka.sasl.token"}
        sources = {names[side]: source for side, source in outward.sources.items()}
        await config_checks.look_at_tokens(self._found["config"], sources, self._options.timeout_s)

    async def _look_at_running(self) -> None:
        assert self._told is not None
        await self._told
        running.judge_running(self._found["running"], self._running, self._settings.data_dir)

    async def _look_at_host(self) -> None:
        from gateway.tools.doctor import host_facts, host_verdicts

        settings, workers, pids = self._settings, self._workers, self._running.pids
        try:
            # A network file system without its server would block.
            facts = await call(lambda: host_facts.gather(settings, workers, pids), self._options.timeout_s)
        except TimeoutError:
            self._found["host"].of("data_dir").fail(
                f"{settings.data_dir.absolute()} did not answer within {self._options.timeout_s:g} s, in which doctor "
                "had the CPU: its disk or file server hangs.",
                "Look at the mount and the kernel's log (dmesg).",
            )
            return
        host_verdicts.judge_host(self._found["host"], settings, facts, workers)

    async def _look_at_mqtt(self, outward: Outward) -> None:
        from gateway.tools.doctor import mqtt_facts, mqtt_verdicts

        settings, router = self._settings, self._router
        asked = []
        for group in router.covers if router is not None else ():
            assert router is not None
            sessions = router.subscriptions(
                settings.mqtt.distribution, 1, share_group=settings.mqtt.share_group, group=group
            )
            asked += [one for some in sessions for one in some]
        found, asking = self._found["mqtt"], mqtt_facts.Asking(settings, outward, self._options.timeout_s)
        addresses = await asking.addresses()
        welcome = mqtt_verdicts.judge_addresses(found, settings, addresses)  # the first visit that was let in
        door = await asking.door(addresses, asked, self._options.device)  # who else is let in, and what is granted
        mqtt_verdicts.judge_rest(found, settings, welcome, door, self._workers)

    async def _look_at_emqx(self) -> None:
        from gateway.tools.doctor import emqx_checks

        found = self._found["emqx"]
        if self._settings.emqx.url is None:
            found.of("api").skip("emqx.url is not set: what EMQX drops before the gateway gets it is seen by nobody.")
            return
        facts = await emqx_checks.gather(self._settings, self._workers)
        assert self._told is not None
        await self._told
        emqx_checks.judge_emqx(
            found, self._settings, facts, self._workers, runs=self._running.runs, rate=self._running.rate
        )
        if self._settings.commands and "api" not in facts.problems:
            from gateway.tools.doctor import command_checks

            others = await command_checks.subscribers(self._settings)
            command_checks.judge_emqx(found, self._settings, others, facts.zone)

    async def _look_at_kafka(self, outward: Outward) -> None:
        from bridge.kafka.login import KafkaLogin
        from gateway.admin.kafka import KafkaAdmin
        from gateway.tools.doctor import admin_facts, broker_verdicts, cluster_verdicts, topic_verdicts
        from gateway.tools.doctor.kafka_facts import Asking

        settings, timeout_s, found = self._settings, self._options.timeout_s, self._found["kafka"]
        asking = Asking(settings, KafkaLogin(settings.kafka, outward.kafka), timeout_s)
        admin = KafkaAdmin(settings, timeout_s=timeout_s)
        cluster = asyncio.create_task(call(admin.cluster, 2 * timeout_s))
        others: asyncio.Task[admin_facts.AdminFacts] | None = None
        try:
            known = await asking.learn(self._wanted(), self._allowed)
            others = asyncio.create_task(admin_facts.gather(admin, cluster, known, self._options.groups, timeout_s))
            brokers = await asking.examine(known, _fenced(cluster, known))
            broker_verdicts.judge_brokers(found, settings.kafka, known, brokers)
            told = await others
            await self._look_at_commands(admin, known)
        finally:
            left = [task for task in (cluster, others) if task is not None]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, asking.close(), return_exceptions=True)
            admin.close()
        topic_verdicts.judge_topics(found, settings, known, told, brokers)
        cluster_verdicts.judge_cluster(found, settings, known, told, brokers, self._options.groups, self._recorded)

    async def _look_at_commands(self, admin: KafkaAdmin, known: Known) -> None:
        if not self._settings.commands or known.layout is None:
            return
        from gateway.tools.doctor import command_checks

        has_groups = "__consumer_offsets" in known.layout.topics
        facts = await command_checks.gather(self._settings, admin, self._options.timeout_s, has_groups=has_groups)
        command_checks.judge_commands(self._found["kafka"], self._settings, facts)

    def _wanted(self) -> Mapping[str, str]:
        """The topics in the settings, with their purposes."""
        settings = self._settings
        named = {} if self._router is None else dict.fromkeys(sorted(self._router.kafka_topics), "a route's")
        named |= dict.fromkeys(settings.dead_letter_topics, "dead letters")
        if settings.ledger.topic:
            named[settings.ledger.topic] = "the ledger"
        return named

    def _allowed(self, topic: str) -> bool:
        """Whether a route's template may make this topic."""
        return any(
            re.fullmatch(route.allowed_topics, topic) is not None
            for route in self._settings.routes
            if "$" in route.topic and not topic.startswith("__")
        )


async def _fenced(cluster: asyncio.Task[Cluster], known: Known) -> Sequence[tuple[int, str, int]]:
    """Registered brokers that metadata do not list."""
    try:
        brokers = (await asyncio.shield(cluster)).brokers
    except (GatewayError, TimeoutError):
        return []
    alive: Iterable[int] = () if known.layout is None else {one.node for one in known.layout.brokers}
    return [(one.id, one.host, one.port) for one in brokers if one.id not in alive and one.port > 0]
