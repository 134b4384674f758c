"""TLS between EMQX and the service: certificates on either side, renewed without a restart."""

import shutil
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from config.settings import AuthSettings
from config.tables.auth import AuthLimitSettings
from config.tables.tls import ServerTlsSettings
from config.values.secret_files import FileSecret
from gateway.http.tls import TlsContext, TlsFilesError
from tests.auth_site import auth_site, login
from tests.servers.authority import Authority
from tests.waiting import until


@pytest.fixture(autouse=True)
def log() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def server_tls(authority: Authority, **more: Any) -> ServerTlsSettings:
    issued = authority.issue("service")
    return ServerTlsSettings(certificate_file=issued.certificate, key_file=issued.key, **more)


def serial(client: Any) -> str:
    return client.writer.get_extra_info("peercert")["serialNumber"]


async def test_questions_over_tls(authority: Authority) -> None:
    tls = TlsContext(server_tls(authority))
    async with auth_site(AuthSettings(), context=lambda: tls.context) as site:
        assert site.server.url.startswith("https://")
        client = await site.connect(authority.client_context())
        client.send(login("allow") + login("soon"))
        assert [(await client.answer()).result for _ in range(2)] == ["allow", "allow"]


async def test_with_a_client_authority_only_its_certificates_are_answered(authority: Authority, tmp_path: Path) -> None:
    tls = TlsContext(server_tls(authority, client_ca_file=authority.ca_file))
    async with auth_site(AuthSettings(), context=lambda: tls.context) as site:
        client = await site.connect(authority.client_context("emqx"))
        client.send(login("allow"))
        assert (await client.answer()).result == "allow"
        foreign = authority.client_context()
        issued = Authority(tmp_path / "foreign").issue("emqx")
        foreign.load_cert_chain(issued.certificate, issued.key)
        for number, context in enumerate((authority.client_context(), foreign), start=1):
            # TLS 1.3: the client's side of the handshake is over before the server has judged it.
            stranger = await site.connect(context)
            stranger.send(login("allow"))
            with pytest.raises((ssl.SSLError, OSError, EOFError)):
                await stranger.answer()
            await until(
                lambda number=number: site.count("connections_refused", "tls") == number, "the refusal is not counted"
            )
        assert len(site.decisions.logins) == 1


async def test_a_handshake_that_does_not_end_is_cut_off(authority: Authority) -> None:
    tls = TlsContext(server_tls(authority))
    settings = AuthSettings(limits=AuthLimitSettings(read_timeout=timedelta(milliseconds=300)))
    async with auth_site(settings, context=lambda: tls.context) as site:
        client = await site.connect()
        client.send(b"\x16\x03\x01")
        await client.ended()
        await until(lambda: site.count("connections_refused", "tls") == 1, "the refusal is not counted")


async def test_handshakes_count_as_connections(authority: Authority) -> None:
    tls = TlsContext(server_tls(authority))
    settings = AuthSettings(limits=AuthLimitSettings(connections=2))
    async with auth_site(settings, context=lambda: tls.context) as site:
        for _ in range(2):
            await site.connect()
        refused = await site.connect()
        await refused.ended()
        await until(lambda: site.count("connections_refused", "full") == 1, "more handshakes than connections")


async def test_plain_http_on_a_tls_port_is_cut_off(authority: Authority) -> None:
    tls = TlsContext(server_tls(authority))
    async with auth_site(AuthSettings(), context=lambda: tls.context) as site:
        client = await site.connect()
        client.send(login("allow"))
        assert b"HTTP" not in await client.ended()
        assert not site.decisions.logins


async def test_bad_new_files_leave_the_old_certificate_in_use(
    authority: Authority, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = server_tls(authority)
    tls = TlsContext(settings)
    async with auth_site(AuthSettings(), context=lambda: tls.context) as site:
        before = await site.connect(authority.client_context())
        fresh = authority.issue("other")
        shutil.copy(fresh.certificate, settings.certificate_file)  # its key is not there yet
        assert tls.refresh() is False
        assert log[-1]["event"] == "server_tls_not_reloaded"
        assert "key" in log[-1]["error"]
        said = len(log)
        assert tls.refresh() is False, "each look counts, or an alert ends with the cause still there"
        assert len(log) == said
        assert serial(await site.connect(authority.client_context())) == serial(before)
        assert settings.key_file is not None
        shutil.copy(fresh.key, settings.key_file)
        with monkeypatch.context() as patch:
            patch.setattr(ssl.SSLContext, "load_cert_chain", Mock(side_effect=PermissionError(13, "Permission denied")))
            assert tls.refresh() is False
        assert tls.refresh() is True, "what could not be read is not tried again"
        after = await site.connect(authority.client_context())
        assert serial(after) != serial(before)
        for client in (before, after):
            client.send(login("allow"))
            assert (await client.answer()).result == "allow"


def test_files_that_cannot_be_used_are_sentences(authority: Authority, tmp_path: Path) -> None:
    good = server_tls(authority)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NONSENSE-----")
    for change, words in (
        ({"certificate_file": tmp_path / "missing"}, "certificate_file and auth.tls.key_file .*No such file"),
        ({"key_file": authority.issue("other").key}, "key has to be the certificate's"),
        ({"key_file": None}, "auth.tls.certificate_file cannot"),
        ({"client_ca_file": garbage}, "client_ca_file cannot"),
        ({"client_ca_file": tmp_path / "missing"}, "client_ca_file cannot be used: No such file"),
    ):
        with pytest.raises(TlsFilesError, match=words):
            TlsContext(good.model_copy(update=change))


def encrypt(file: Path | None, password: bytes) -> None:
    """The key in that file, with that password."""
    from cryptography.hazmat.primitives import serialization

    assert file is not None
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )


def test_the_password_of_a_renewed_key_is_read_again(authority: Authority, tmp_path: Path) -> None:
    good, file = server_tls(authority), tmp_path / "key-password"
    encrypt(good.key_file, b"old")
    file.write_text("old")
    tls = TlsContext(good.model_copy(update={"key_password": FileSecret("old", file)}))
    authority.issue("service")
    encrypt(good.key_file, b"new")
    assert tls.refresh() is False
    file.write_text("new")
    assert tls.refresh() is True


def test_an_encrypted_key_without_its_password_is_a_sentence_and_no_prompt(authority: Authority) -> None:
    good = server_tls(authority)
    encrypt(good.key_file, b"key password")
    with pytest.raises(TlsFilesError, match="key_password") as raised:
        TlsContext(good)
    assert raised.value.exit_status == 78
    given = ServerTlsSettings(**{**good.model_dump(), "key_password": "key password"})
    assert TlsContext(given).context.get_ca_certs() == []
