"""The HiveMQ process: a JVM inside this Python through JPype. Run as a script: ``_hivemq.py DESCRIPTION.json``.

Its own ``main`` class refuses every client unless an extension decides about them; embedded, it takes an extension
written here. The description: ``jvm_library``, ``classpath``, ``heap_mib``, ``configuration``, ``data``,
``max_inflight`` and ``users`` (name → password, or null for anonymous access).
"""

from __future__ import annotations

import hmac
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TypeVar

import jpype

_F = TypeVar("_F")

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
    if description["users"] is not None:
        builder.withEmbeddedExtension(_extension(description["users"]))
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


def _extension(users: dict[str, str]) -> Any:
    """A HiveMQ extension that lets in who knows a password of ``users``."""
    authenticator = _authenticator(users)

    @jpype.JImplements("com.hivemq.extension.sdk.api.services.auth.provider.AuthenticatorProvider")
    class Provider:
        @_override
        def getAuthenticator(self, _input: Any) -> Any:  # noqa: N802 - the interface's name
            return authenticator

    provider = Provider()

    @jpype.JImplements("com.hivemq.extension.sdk.api.ExtensionMain")
    class Main:
        @_override
        def extensionStart(self, _input: Any, _output: Any) -> None:  # noqa: N802 - the interface's name
            jpype.JClass("com.hivemq.extension.sdk.api.services.Services").securityRegistry().setAuthenticatorProvider(
                provider
            )

        @_override
        def extensionStop(self, _input: Any, _output: Any) -> None:  # noqa: N802 - the interface's name
            pass

    return (
        jpype.JClass("com.hivemq.embedded.EmbeddedExtension")
        .builder()
        .withId("passwords")
        .withName("passwords")
        .withVersion("1")
        .withExtensionMain(Main())
        .build()
    )


def _authenticator(users: dict[str, str]) -> Any:
    refused = jpype.JClass("com.hivemq.extension.sdk.api.packets.connect.ConnackReasonCode").BAD_USER_NAME_OR_PASSWORD

    @jpype.JImplements("com.hivemq.extension.sdk.api.auth.SimpleAuthenticator")
    class Authenticator:
        @_override
        def onConnect(self, request: Any, response: Any) -> None:  # noqa: N802 - the interface's name
            packet = request.getConnectPacket()
            name, password = packet.getUserName(), packet.getPassword()
            expected = users.get(str(name.get())) if name.isPresent() else None
            if (
                expected is not None
                and password.isPresent()
                and hmac.compare_digest(_bytes(password.get()), expected.encode())
            ):
                response.authenticateSuccessfully()
            else:
                response.failAuthentication(refused)

    return Authenticator()


def _bytes(buffer: Any) -> bytes:
    start = buffer.position()
    return bytes(buffer.get(start + index) & 0xFF for index in range(buffer.remaining()))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    os._exit(0)  # threads of the broker's are left that would keep the process
