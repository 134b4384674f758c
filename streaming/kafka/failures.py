"""Spark's and Kafka's failures as ours: a sentence that names the cause and what to check; the original is chained."""

import re

from config.settings import Settings
from streaming import errors
from streaming.errors import DataLossError, KafkaRefusedError, KafkaUnavailableError, StreamError
from streaming.kafka.options import GROUP_ID_PREFIX, topics

_PLAN = "=== Streaming Query ==="  # from here on Spark prints the whole plan
_MOST_TEXT = 600
_OURS = re.compile(r"^streaming\.errors\.(?P<kind>\w+): (?P<sentence>.*)$", re.MULTILINE)
_ABSENT = ("UnknownTopicOrPartitionException", "InvalidTopicException")
_DATA_LOSS = ("KAFKA_DATA_LOSS", "data may have been lost", "data may have been missed", "OffsetOutOfRangeException")
_AUTHENTICATION = ("SaslAuthenticationException", "SslAuthenticationException", "UnsupportedSaslMechanismException")
_AUTHORIZATION = ("AuthorizationException",)
_UNREACHABLE = ("TimeoutException", "DisconnectException", "BootstrapResolutionException",
                "No resolvable bootstrap urls")  # fmt: skip


def explain(query: str, failure: BaseException, settings: Settings) -> StreamError:
    """The failure of a query as one of our errors, chained to ``failure``. Decides by the names in Java's text."""
    text = str(failure).partition(_PLAN)[0].strip()
    error = _raised_by_us(text) or _translate(query, text, settings)
    error.query = query
    error.__cause__ = failure
    return error


def _raised_by_us(text: str) -> StreamError | None:
    """Our own error out of a query's Python code, which comes back as the text of a traceback."""
    for name, sentence in _OURS.findall(text)[-1:]:  # what it ended with
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StreamError):
            return kind(sentence.strip())
    return None


def cause(text: str) -> str:
    """The line of a trace, Java's or Python's or one inside the other, that says most: what it all began with."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("\t", " "))] or [text.strip()]
    line = lines[-1 if "Traceback (most recent call last)" in text else 0]
    for begin in (": ", "Caused by: "):  # ": " begins the Java error inside a Python one
        if found := [line for line in lines if line.startswith(begin)]:
            line = found[-1].removeprefix(begin)
    line = line.strip().rstrip(".")
    return line if len(line) <= _MOST_TEXT else f"{line[:_MOST_TEXT]} …"


def _topics(query: str, settings: Settings) -> tuple[str, tuple[str, ...]]:
    """The settings that say what a query reads of Kafka, and what they name."""
    ledger = (settings.ledger.topic,) if settings.ledger.topic else ()
    match query:
        case "devices":
            return "ledger.topic or stream.devices.presence_topics", (*ledger, *settings.stream.devices.presence_topics)
        case "anomalies":
            return "stream.anomalies.topic", (settings.stream.anomalies.topic,)
        case "audit":
            named = (*topics(settings), *settings.dead_letter_topics, *ledger)
            return "stream.topics, ledger.topic or dead_letter.topic", named
        case "gold":
            return "stream.topics", ()  # it reads a table
        case _:
            return "stream.topics", topics(settings)


def _translate(query: str, text: str, settings: Settings) -> StreamError:
    servers = ", ".join(settings.kafka.bootstrap_servers)
    short = cause(text)

    def says(*names: str) -> bool:
        return any(name in text for name in names)

    if says(*_DATA_LOSS):
        return DataLossError(
            "Kafka no longer has records that were not read yet: the job was away for longer than the topic's"
            f" retention, or a topic was deleted or is no longer one to read. Kafka's client says: {short}. Nothing"
            " was stepped over. To accept the loss and go on with what is there, start once with --allow-data-loss."
        )
    if says(*_ABSENT):
        said, named = _topics(query, settings)
        return KafkaUnavailableError(
            f"Not all of the topics {', '.join(named)} exist in Kafka at {servers}: gateway topics list shows which do."
            f" Is {said} spelt right? Has the gateway, which creates them if kafka.topics.create is true, been started?"
        )
    if says(*_AUTHENTICATION):
        return KafkaRefusedError(
            f"Kafka at {servers} refuses the connection ({short}). Check kafka.security, the user and password in"
            " kafka.sasl and the certificates in kafka.tls."
        )
    if says(*_AUTHORIZATION):
        _, named = _topics(query, settings)
        right = "Write" if query == "anomalies" else "Read"
        return KafkaRefusedError(
            f"Kafka at {servers} does not allow this user what it needs ({short}): {right} and Describe on the topics"
            f" {', '.join(named)} and Read on consumer groups that begin with {GROUP_ID_PREFIX!r}."
        )
    if says(*_UNREACHABLE):
        return KafkaUnavailableError(
            f"Kafka at {servers} does not answer ({short}). Are its brokers up, are the addresses in their"
            " advertised.listeners reachable from here, and does kafka.security fit their listener?"
        )
    if says("CONCURRENT_STREAM_LOG_UPDATE", "concurrently using", "CONCURRENT_QUERY"):
        return StreamError(
            f"Another process runs the query {query} at the same checkpoint ({short}). Stop one of the two, or give it"
            " a stream.checkpoint and tables of its own. Nothing is lost or doubled."
        )
    if says("No space left on device", "Disk quota exceeded"):
        return StreamError(
            f"A folder of the job is on a full disk ({short}). Make room and start again; nothing is lost, the batch is"
            " repeated."
        )
    return StreamError(f"The query {query} ended with {short}. Spark's log, on standard error, has the trace.")
