"""The HiveMQ process: a JVM inside this Python through JPype. Run as a script: ``_hivemq.py DESCRIPTION.json``.

Its own ``main`` class refuses every client unless an extension decides about them; embedded, it takes an extension
written here. The description: ``jvm_library``, ``jvm_flags``, ``classpath``, ``heap_mib``, ``configuration``, ``data``,
``max_inflight``, and ``access`` (``host``, ``port``, ``secret`` of the service that is asked who is let in), or null
for everybody.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jpype

from gateway.local.embedded.access import AccessClient, AccessEndpoint, Login

_F = TypeVar("_F")
_SDK = "com.hivemq.extension.sdk.api"
_LOGIN = "gateway.login"  # where a connection's login is kept, with the connection
_ASKING_AT_ONCE = 16
_ASKING_S = 8  # longer than the client's own time-out: this one is only for what must not happen

_OPEN = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/java.lang",
    "jdk.management/com.sun.management.internal",
)


def main(description: dict[str, Any]) -> None:
    """Start the broker, print ``ready``, stop on SIGTERM."""
    jpype.startJVM(
        *[f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN],
        *description["jvm_flags"],
        "-Xms64m",
        f"-Xmx{description['heap_mib']}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Djava.awt.headless=true",
        f"-Dlogback.configurationFile={Path(description['configuration']) / 'logback.xml'}",
        f"-Dhivemq.log.folder={description['data']}",
        jvmpath=description["jvm_library"],
        classpath=description["classpath"],
    )
    internal = jpype.JClass("com.hivemq.configuration.service.InternalConfigurations")
    internal.MAX_INFLIGHT_WINDOW_SIZE_MESSAGES = description["max_inflight"]
    path = jpype.JClass("java.nio.file.Path")
    builder = jpype.JClass("com.hivemq.embedded.EmbeddedHiveMQ").builder()
    builder.withConfigurationFolder(path.of(description["configuration"]))
    builder.withDataFolder(path.of(description["data"]))
    builder.withoutLoggingBootstrap()
    if description["access"] is not None:
        access = AccessClient(AccessEndpoint(**description["access"]))
        builder.withEmbeddedExtension(_extension(access))
    # Before the broker's start, so that a SIGTERM that comes during it is not lost.
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    broker = builder.build()
    broker.start().join()
    print("ready", flush=True)  # noqa: T201 - what the parent waits for
    stop.wait()
    # Its own stop would close the clients' connections without a DISCONNECT, as the end of this process does, and then
    # wait 4 s for files that a broker in memory does not have.


def _override(function: _F) -> _F:
    """JPype's mark, with the type it lacks."""
    marked: _F = jpype.JOverride(function)
    return marked


def _extension(access: AccessClient) -> Any:
    """A HiveMQ extension that asks the service who is let in, and to do what."""
    authenticator, authorizer = _authenticator(access), _authorizer(access)

    @jpype.JImplements(
        [f"{_SDK}.services.auth.provider.AuthenticatorProvider", f"{_SDK}.services.auth.provider.AuthorizerProvider"]
    )
    class Provider:
        @_override
        def getAuthenticator(self, _input: Any) -> Any:  # noqa: N802 - the interface's name
            return authenticator

        @_override
        def getAuthorizer(self, _input: Any) -> Any:  # noqa: N802 - the interface's name
            return authorizer

    provider = Provider()

    @jpype.JImplements(f"{_SDK}.ExtensionMain")
    class Main:
        @_override
        def extensionStart(self, _input: Any, _output: Any) -> None:  # noqa: N802 - the interface's name
            registry = jpype.JClass(f"{_SDK}.services.Services").securityRegistry()
            registry.setAuthenticatorProvider(provider)
            registry.setAuthorizerProvider(provider)

        @_override
        def extensionStop(self, _input: Any, _output: Any) -> None:  # noqa: N802 - the interface's name
            pass

    builder = jpype.JClass("com.hivemq.embedded.EmbeddedExtension").builder()
    return builder.withId("access").withName("access").withVersion("1").withExtensionMain(Main()).build()


_THREADS = ThreadPoolExecutor(_ASKING_AT_ONCE, "asking")


def _decide_in_thread(output: Any, decide: Callable[[], None]) -> None:
    """Run ``decide``, which blocks, in a thread, so that the broker's few threads are not held up; the broker goes on
    with this client when it is done. If that never is, the client is refused."""
    seconds = jpype.JClass("java.time.Duration").ofSeconds(_ASKING_S)
    waiting = output.async_(seconds, jpype.JClass(f"{_SDK}.async.TimeoutFallback").FAILURE)

    def work() -> None:
        try:
            decide()
        finally:
            waiting.resume()

    _THREADS.submit(work)


def _authenticator(access: AccessClient) -> Any:
    """Asks the service at CONNECT, and keeps the login with the connection for the authorizer."""
    refused = jpype.JClass(f"{_SDK}.packets.connect.ConnackReasonCode").NOT_AUTHORIZED

    def decide(request: Any, response: Any) -> None:
        packet, connection = request.getConnectPacket(), request.getConnectionInformation()
        name, password, address = packet.getUserName(), packet.getPassword(), connection.getInetAddress()
        try:
            login = access.login(
                str(name.get()) if name.isPresent() else "",
                str(packet.getClientId()),
                _bytes(password.get()).decode() if password.isPresent() else "",
                str(address.get().getHostAddress()) if address.isPresent() else "",
            )
        except UnicodeDecodeError:
            login = None  # EMQX asks nobody about a password that is no text, and refuses it
        if login is None:
            response.failAuthentication(refused)
        else:
            connection.getConnectionAttributeStore().putAsString(_LOGIN, login.to_json())
            response.authenticateSuccessfully()

    @jpype.JImplements(f"{_SDK}.auth.SimpleAuthenticator")
    class Authenticator:
        @_override
        def onConnect(self, request: Any, response: Any) -> None:  # noqa: N802 - the interface's name
            _decide_in_thread(response, lambda: decide(request, response))

    return Authenticator()


def _authorizer(access: AccessClient) -> Any:
    """Decides about each topic that a client publishes to or subscribes to."""

    def decide(request: Any, response: Any, action: str, topic: Any, qos: Any, *, retain: bool) -> None:
        kept = request.getConnectionInformation().getConnectionAttributeStore().getAsString(_LOGIN)
        if not kept.isPresent():
            response.failAuthorization()
            return
        question = (Login.from_json(str(kept.get())), action, str(topic), int(qos.getQosNumber()))
        known = access.known(*question, retain=retain)
        if known is None:
            _decide_in_thread(response, lambda: _answer(response, allowed=access.may(*question, retain=retain)))
        else:
            _answer(response, allowed=known)

    @jpype.JImplements([f"{_SDK}.auth.PublishAuthorizer", f"{_SDK}.auth.SubscriptionAuthorizer"])
    class Authorizer:
        @_override
        def authorizePublish(self, request: Any, response: Any) -> None:  # noqa: N802 - the interface's name
            packet = request.getPublishPacket()
            retain = bool(packet.getRetain())
            decide(request, response, "publish", packet.getTopic(), packet.getQos(), retain=retain)

        @_override
        def authorizeSubscribe(self, request: Any, response: Any) -> None:  # noqa: N802 - the interface's name
            asked = request.getSubscription()
            decide(request, response, "subscribe", asked.getTopicFilter(), asked.getQos(), retain=False)

    return Authorizer()


def _answer(response: Any, *, allowed: bool) -> None:
    if allowed:
        response.authorizeSuccessfully()
    else:
        response.failAuthorization()


def _bytes(buffer: Any) -> bytes:
    start = buffer.position()
    return bytes(buffer.get(start + index) & 0xFF for index in range(buffer.remaining()))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    # Threads of the broker's are left that would keep the process. A JVM that is to write its class data does so here.
    jpype.JClass("java.lang.Runtime").getRuntime().halt(0)
