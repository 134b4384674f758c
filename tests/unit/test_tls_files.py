"""A TLS context follows its files, and survives the moments in which they do not fit together."""

import datetime as dt
import os
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bridge.certificate import validity
from bridge.tls import TlsFiles, tls_context
from config.errors import ConfigError
from config.settings import TlsSettings
from tests.servers.authority import Authority, Issued


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def mine(authority: Authority) -> Issued:
    return authority.issue("gateway")


def settings(authority: Authority, mine: Issued) -> TlsSettings:
    return TlsSettings(ca_file=authority.ca_file, certificate_file=mine.certificate, key_file=mine.key)


@pytest.mark.parametrize("verify", [True, False])
def test_a_certificate_is_checked_unless_the_settings_say_otherwise(verify: bool) -> None:
    context = tls_context(TlsSettings(verify=verify), "mqtt.tls")
    assert context.check_hostname is verify
    assert context.verify_mode is (ssl.CERT_REQUIRED if verify else ssl.CERT_NONE)


def test_as_long_as_nothing_changes_it_is_the_same(authority: Authority, mine: Issued) -> None:
    files = TlsFiles(settings(authority, mine), "mqtt.tls")
    with capture_logs() as lines:
        assert files.context() is files.context()
    assert lines == []
    assert files.validity == validity(mine.certificate)


def test_files_that_are_written_anew_make_another(authority: Authority, mine: Issued) -> None:
    files = TlsFiles(settings(authority, mine), "mqtt.tls")
    before, good_for = files.context(), files.validity
    authority.issue("gateway", left=dt.timedelta(days=4))
    with capture_logs() as lines:
        after = files.context()
        assert files.context() is after
    assert after is not before
    assert [line["event"] for line in lines] == ["tls_files_changed"]
    assert files.validity != good_for


def test_a_link_that_leads_elsewhere_makes_another(authority: Authority, mine: Issued, tmp_path: Path) -> None:
    """As Kubernetes renews what it has mounted: one link is replaced, and both files are new at once."""
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "current"
    for folder, issued in ((old, mine), (new, authority.issue("gateway", file="other"))):
        folder.mkdir()
        (folder / "tls.crt").write_bytes(issued.certificate.read_bytes())
        (folder / "tls.key").write_bytes(issued.key.read_bytes())
    link.symlink_to(old)
    files = TlsFiles(TlsSettings(certificate_file=link / "tls.crt", key_file=link / "tls.key"), "mqtt.tls")
    before = files.context()
    (tmp_path / "next").symlink_to(new)
    (tmp_path / "next").replace(link)
    assert files.context() is not before


@pytest.mark.parametrize("damage", ["the key is still the old one", "garbage", "gone"])
def test_what_does_not_fit_leaves_the_last_in_use(authority: Authority, mine: Issued, damage: str) -> None:
    files = TlsFiles(settings(authority, mine), "mqtt.tls")
    before, key = files.context(), mine.key.read_bytes()
    if damage == "garbage":
        mine.certificate.write_text("no certificate")
    elif damage == "gone":
        mine.certificate.unlink()
    else:
        authority.issue("gateway")
        mine.key.write_bytes(key)
    with capture_logs() as lines:
        assert files.context() is before
        assert files.context() is before
    assert {line["event"] for line in lines} == {"tls_files_not_usable"}
    authority.issue("gateway")
    assert files.context() is not before


def test_the_first_time_it_is_an_error(authority: Authority, mine: Issued) -> None:
    mine.key.write_text("no key")
    with pytest.raises(ConfigError, match=r"mqtt\.tls\.certificate_file"):
        TlsFiles(settings(authority, mine), "mqtt.tls")


def test_the_systems_authorities_are_followed_too(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.ca_file.read_bytes())
    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, str(bundle))
    files = TlsFiles(TlsSettings(), "kafka.tls")
    before = files.context()
    assert files.context() is before
    other = Authority(tmp_path / "other").ca_file.read_bytes()
    bundle.write_bytes(bundle.read_bytes() + other)
    os.utime(bundle, ns=(1, 1))
    assert files.context() is not before
    assert len(files.context().get_ca_certs()) == 2
