"""The groups of MQTT sessions of a worker, by its settings."""

from dataclasses import dataclass

from config.settings import Settings


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group by the settings: ``name`` is empty for the sessions of ``mqtt.sessions``. ``settings`` are the worker's,
    with the group's number of sessions, window and memory. ``every_route``: its messages may take routes of every
    group."""

    name: str
    settings: Settings
    every_route: bool = False

    def session_name(self, number: int) -> str:
        """What the session is called in client ids, logs and metrics."""
        return f"{self.name}-{number}" if self.name else str(number)


def group_plans(settings: Settings) -> tuple[GroupPlan, ...]:
    """The groups of a worker, that of ``mqtt.sessions`` first. They share ``flow.memory_bytes``."""
    groups = settings.mqtt.groups
    left = settings.flow.memory_bytes - sum(group.memory_bytes for group in groups)
    flow = settings.flow.model_copy(update={"memory_bytes": left})
    plans = [GroupPlan("", settings.model_copy(update={"flow": flow}))]
    for group in groups:
        own = {"sessions": group.sessions, "receive_maximum": group.receive_maximum}
        update = {
            "mqtt": settings.mqtt.model_copy(update=own),
            "flow": settings.flow.model_copy(update={"memory_bytes": group.memory_bytes}),
        }
        plans.append(GroupPlan(group.name, settings.model_copy(update=update)))
    return tuple(plans)


def orphan_plan(settings: Settings) -> GroupPlan:
    """The group for sessions of earlier settings, with messages of any route; it creates none itself. Until they are
    drained it has an extra quarter of the worker's memory."""
    update = {
        "mqtt": settings.mqtt.model_copy(update={"sessions": 0}),
        "flow": settings.flow.model_copy(update={"memory_bytes": max(1 << 20, settings.flow.memory_bytes // 4)}),
    }
    return GroupPlan("", settings.model_copy(update=update), every_route=True)


def session_names(settings: Settings) -> list[str]:
    """The names of all sessions of a worker, in order."""
    return [
        plan.session_name(number) for plan in group_plans(settings) for number in range(plan.settings.mqtt.sessions)
    ]


def client_id(settings: Settings, worker: int | str, session: str) -> str:
    """The client id of a worker's session of this name."""
    text = settings.mqtt.client_id
    for name, value in {"instance": settings.instance, "worker": str(worker), "session": session}.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def client_ids(settings: Settings, worker: int) -> list[tuple[str, str]]:
    """Name and client id of each session of a worker, in order."""
    return [(name, client_id(settings, worker, name)) for name in session_names(settings)]
