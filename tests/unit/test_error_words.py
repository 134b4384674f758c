"""What libraries say of a network or a disk reaches people in words."""

import ast
import asyncio
import errno
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pymysql.err
import pytest
from aiokafka import errors as kafka_errors
from jwt.exceptions import MissingRequiredClaimError

from auth.backends.network_causes import network_cause
from auth.jwt.fetching import Fetcher, FetchError
from bridge.kafka.connection import why_unreachable
from bridge.kafka.login import KafkaLogin
from bridge.kafka.probe import ProbeError, open_link
from bridge.tls import tls_context
from config.error_words import system_number, words
from config.errors import ConfigError
from config.settings import KafkaSettings, MqttSettings, TlsSettings
from config.values.addresses import parse_mqtt_address
from gateway.mqtt.reasons import connect_error

RAW: Final = re.compile(
    r"Errno|_ssl\.c|\[SSL|\[Error|object at|Multiple exc|[a-z](Error|Exception)\b|Connect call|node which|<\w+ "
)
BOTH = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 111] Connect call failed ('1.2.3.4', 9)"
MIXED = BOTH.replace("[Errno 111]", "[Errno 101]", 1)


def _tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] {reason.lower()} (_ssl.c:1002)")
    error.reason = reason
    return error


def _not_trusted(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {message}")
    error.verify_code, error.verify_message = code, message
    return error


def _dns_error() -> aiohttp.ClientConnectorDNSError:
    key = aiohttp.client_reqrep.ConnectionKey("nowhere", 80, False, True, None, None, None)
    return aiohttp.ClientConnectorDNSError(key, socket.gaierror(-2, "Name or service not known"))


class _AsleepError(RuntimeError):
    def __str__(self) -> str:
        return "it sleeps"


ERRORS: Final[dict[str, tuple[Exception, str]]] = {
    "refused": (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "connection refused"),
    "refused by both addresses": (OSError(BOTH), "connection refused"),
    "two addresses, two causes": (OSError(MIXED), "network is unreachable, connection refused"),
    "no route": (OSError(errno.EHOSTUNREACH, "Connect call failed"), "no route to host"),
    "reset": (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
    "reset without a number": (ConnectionResetError("Cannot write to closing transport"), "connection reset by peer"),
    "name not known": (socket.gaierror(-2, "Name or service not known"), "its host name is not known here"),
    "DNS does not answer": (socket.gaierror(-3, "Temporary failure"), "its host name cannot be looked up now"),
    "time-out": (TimeoutError(), "no answer in time"),
    "end": (asyncio.IncompleteReadError(b"", 4), "the connection was closed"),
    "no TLS": (_tls("WRONG_VERSION_NUMBER"), "TLS: wrong version number"),
    "TLS without a reason": (ssl.SSLError("[SSL] broken off (_ssl.c:1002)"), "TLS: broken off"),
    "expired": (_not_trusted(10, "certificate has expired"), "the certificate is not trusted: certificate has expired"),
    "wrong name": (_not_trusted(62, "Hostname mismatch"), "the certificate is not trusted: Hostname mismatch"),
    "unknown CA": (_not_trusted(20, "no issuer"), "the certificate is not trusted: no issuer"),
    "full disk": (OSError(errno.ENOSPC, "No space", "/data/x"), "no space left on device: /data/x"),
    "a text of its own": (OSError("Error connecting: [Errno 111] Connection refused"), "connection refused"),
    "a name that DNS lacks, by a library": (_dns_error(), "its host name is not known here"),
    "TLS closed": (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "TLS: the connection was closed"),
    "end of a file": (EOFError("Compressed file ended early"), "Compressed file ended early"),
    "nothing but a class": (ArithmeticError(), "arithmetic error"),
    "a field that is not there": (KeyError("topic"), "'topic' is missing"),
    "a text of two parts": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    "several": (ExceptionGroup("in a TaskGroup", [TimeoutError(), OSError(28, "")]),
        "no answer in time, no space left on device"),
    "a database's number and text": (pymysql.err.OperationalError(1040, "Too many connections"),
        "Too many connections"),
    "a database's number": (pymysql.err.InterfaceError(0, ""), "interface error"),
    "a claim that is not there": (MissingRequiredClaimError("exp"), 'Token is missing the "exp" claim'),
    "a class with a sentence": (_AsleepError(), "it sleeps"),
    "a Kafka error without a sentence": (kafka_errors.LeaderNotAvailableError(), "leader not available"),
    "a Kafka error with a topic alone": (kafka_errors.TopicAuthorizationFailedError("sensors"),
        "topic authorization failed (sensors)"),
    "a Kafka error with a sentence": (kafka_errors.CorrelationIdError("Ids do not match."), "Ids do not match"),
    "a Kafka error without a name": (kafka_errors.UnknownError(), "unknown error"),
    "aiokafka's words": (kafka_errors.NodeNotReadyError("Attempt to send a request to node which is not ready."),
        "there is no connection to the broker"),
}  # fmt: skip


@pytest.mark.parametrize(("error", "expected"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_put_into_words_and_no_place_quotes_the_library(error: Exception, expected: str) -> None:
    assert words(error) == expected
    settings = MqttSettings(addresses=("mqtts://broker:8883",))
    said = [str(connect_error(parse_mqtt_address("mqtts://broker:8883"), error, settings)), expected]
    if (cause := network_cause(error, "auth.ldap")) is not None:
        said.append(cause[1])
    for sentence in said:
        assert not RAW.search(sentence), sentence


def test_the_number_is_found_where_a_library_hides_it() -> None:
    assert system_number(OSError(BOTH)) == errno.ECONNREFUSED
    assert system_number(ConnectionResetError("cut")) == errno.ECONNRESET
    assert system_number(OSError(MIXED)) is None
    assert system_number(_tls("UNKNOWN_CA")) is None, "the 1 of a TLS error is not EPERM"
    assert system_number(ValueError()) is None


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("garbage")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigError) as raised:
            tls_context(TlsSettings(ca_file=tmp_path / name), "mqtt.tls")
        assert not RAW.search(str(raised.value)), raised.value


# --- the source, read for siblings ---
ROOT: Final = Path(__file__).parents[2]
THEIRS: Final = re.compile(
    r"OSError|EOFError|KeyError|ConnectionError|ssl\.|socket\.|sqlite3\.|aiohttp\.|.*[Kk]afka_?[Ee]rror|REFUSED"
)
# They ask whether it is a StoreError before they quote.
OUR_SENTENCE: Final = ("auth/store/store.py", "auth/store/writer.py")


def quoted(tree: ast.AST) -> Iterator[int]:
    """The lines that put an error of the system's or a library's into a text as it is: {error}, str(error)."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if not any(THEIRS.match(ast.unparse(kind)) for kind in kinds):
            continue
        for node in ast.walk(handler):
            match node:
                case ast.FormattedValue(value=ast.Name(id=handler.name)):
                    yield node.lineno
                case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=handler.name)]):
                    yield node.lineno


def test_no_sentence_of_ours_quotes_an_error_of_the_system_or_of_a_client() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for package in ("auth", "bridge", "config", "gateway", "streaming")
        for file in sorted((ROOT / package).rglob("*.py"))
        if str(file.relative_to(ROOT)) not in OUR_SENTENCE
        for line in quoted(ast.parse(file.read_text()))
    ]
    assert not found, f"put it into words (config.error_words): {', '.join(found)}"


# --- servers that misbehave, on a real socket ---
async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" * 4)
    await writer.drain()
    writer.close()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")
    await writer.drain()
    writer.close()


SERVERS = {
    "hangs up": _hang_up, "resets": _reset, "garbage": _garbage, "answers in part": _short, "says nothing": _silent,
    "absent": None,
}  # fmt: skip


@pytest.fixture(params=SERVERS.values(), ids=list(SERVERS))
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    handle: Callable[..., object] | None = request.param
    server = await asyncio.start_server(handle or _hang_up, "127.0.0.1", 0)  # type: ignore[arg-type]
    number = server.sockets[0].getsockname()[1]
    if handle is None:
        server.close()
        await server.wait_closed()
    yield number
    server.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_http_client_says_it_in_words(port: int, scheme: str) -> None:
    fetcher = Fetcher(
        f"{scheme}://127.0.0.1:{port}/", "emqx.url", tls=TlsSettings(), tls_setting="emqx.tls", timeout_s=0.3,
        largest=1000,
    )  # fmt: skip
    with pytest.raises(FetchError) as raised:
        await fetcher.get()
    sentence = str(raised.value)
    assert not RAW.search(sentence), sentence
    assert not any(name in sentence for name in dir(aiohttp) if name.endswith("Error")), sentence


@pytest.mark.parametrize("security", ["PLAINTEXT", "SSL"])
async def test_a_kafka_client_says_it_in_words(port: int, security: str) -> None:
    settings = KafkaSettings(
        bootstrap_servers=(f"127.0.0.1:{port}",), security=security, request_timeout=timedelta(seconds=1)
    )
    login = KafkaLogin(settings)
    options = {"bootstrap_servers": [f"127.0.0.1:{port}"], "request_timeout_ms": 300, "client_id": "test"}
    sentences = [str(await why_unreachable(options, login))]
    try:
        link = await open_link("127.0.0.1", port, login, "test", 0.3)
    except ProbeError as error:
        sentences.append(str(error))
    else:
        try:
            await link.layout([])
        except ProbeError as error:
            sentences.append(str(error))
        finally:
            link.close()
    for sentence in sentences:
        assert not RAW.search(sentence), sentence


async def test_a_kafka_address_without_a_host_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("bridge.kafka.connection.open_connection", unknown)
    settings = KafkaSettings(bootstrap_servers=("kafka:9092",))
    options = {"bootstrap_servers": ["kafka:9092"], "request_timeout_ms": 300, "client_id": "test"}
    assert "Check kafka.bootstrap_servers" in str(await why_unreachable(options, KafkaLogin(settings)))
