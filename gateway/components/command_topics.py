"""The Kafka topics of commands at the start: whether they can keep what is promised; makes the status topic."""

from collections.abc import Iterable, Mapping

from bridge.errors import RefusedError, TopicMissingError
from bridge.kafka.login import KafkaLogin
from bridge.kafka.reader import TopicFacts, TopicReader
from bridge.kafka.topics import Topics
from config.settings import KafkaSettings
from config.tables.commands import CommandSettings
from config.tables.kafka import TopicSettings
from config.values.grammar import format_duration


async def prepare_topics(
    settings: KafkaSettings, client_id: str, commands: CommandSettings, login: KafkaLogin | None = None
) -> None:
    """Create a missing status topic, if the settings allow it, and check all. Raises RefusedError with a sentence about
    what has to change, and what the reader of topics raises."""
    facts = await _facts(settings, client_id, commands.topics, login)
    try:
        facts |= await _facts(settings, client_id, [commands.status_topic], login)
    except TopicMissingError:
        if not settings.topics.create:
            raise
        most = max(fact.partitions for fact in facts.values())
        await _create(settings, client_id, commands, most, login)
        facts |= await _facts(settings, client_id, [commands.status_topic], login)
    if problems := list(objections(facts, commands)):
        raise RefusedError(" ".join(problems))


async def _facts(
    settings: KafkaSettings, client_id: str, topics: Iterable[str], login: KafkaLogin | None
) -> dict[str, TopicFacts]:
    async with TopicReader(settings, client_id, topics, login) as reader:
        return {fact.name: fact for fact in reader.facts}


async def _create(
    settings: KafkaSettings, client_id: str, commands: CommandSettings, partitions: int, login: KafkaLogin | None
) -> None:
    """Create the status topic, with the retention of the settings and so many partitions."""
    declared = TopicSettings(
        name=commands.status_topic, partitions=partitions, replication=settings.topics.replication,
        retention=commands.status_retention, cleanup_policy="compact,delete",
    )  # fmt: skip
    topics = settings.topics.model_copy(update={"declare": (*settings.topics.declare, declared)})
    await Topics(settings, client_id, login).create(
        [commands.status_topic], settings=settings.model_copy(update={"topics": topics})
    )


def objections(facts: Mapping[str, TopicFacts], commands: CommandSettings) -> Iterable[str]:
    """What the topics cannot keep, a sentence each. What Kafka does not tell is not objected to."""
    status = facts[commands.status_topic]
    expiry_ms = commands.expiry.total_seconds() * 1000
    for name in commands.topics:
        topic = facts[name]
        if "compact" in (topic.cleanup_policy or ""):
            yield (
                f"Topic {name} is compacted, so Kafka would delete commands before they are taken. Set its "
                "cleanup.policy to delete."
            )
        if topic.retention_ms is not None and 0 <= topic.retention_ms < expiry_ms:
            yield (
                f"Topic {name} keeps records for {topic.retention_ms:,} ms, less than commands.expiry "
                f"({format_duration(commands.expiry)}): Kafka would delete commands that have not expired. Raise its "
                "retention.ms."
            )
        if topic.partitions > status.partitions:
            yield (
                f"Topic {status.name} has {status.partitions} partitions, and {name} has {topic.partitions}: a "
                "command's status has no partition. Add partitions to the first."
            )
