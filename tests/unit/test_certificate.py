"""Until when a certificate is good, read as ``cryptography`` reads it."""

import datetime as dt
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bridge.certificate import Validity, shown_by, validity
from gateway.mqtt.login import Shown
from gateway.mqtt.renewal import margin_s, why_renew
from tests.servers.authority import Authority

BEGINS = dt.datetime(2020, 2, 29, 12, 34, 56, tzinfo=dt.UTC)


def _write(file: Path, ends: dt.datetime, *, large: bool = False, begins: dt.datetime = BEGINS) -> bytes:
    key = rsa.generate_private_key(65537, 2048) if large else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway" + "x" * (40 if large else 0))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number((1 << 158) + 7 if large else 1).not_valid_before(begins).not_valid_after(ends)
    if large:
        names = x509.SubjectAlternativeName([x509.DNSName(f"host-{number}.example") for number in range(200)])
        builder = builder.add_extension(names, critical=False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    file.write_bytes(pem)
    return pem


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("ends", [
    dt.datetime(2020, 3, 1, tzinfo=dt.UTC),
    dt.datetime(2049, 12, 31, 23, 59, 59, tzinfo=dt.UTC),  # the last that is written with two digits
    dt.datetime(2050, 1, 1, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC),  # "no well-defined end" (RFC 5280, 4.1.2.5)
])  # fmt: skip
def test_its_times_are_read(tmp_path: Path, ends: dt.datetime, large: bool) -> None:
    file = tmp_path / "client.crt"
    _write(file, ends, large=large)
    assert validity(file) == Validity(BEGINS.timestamp(), ends.timestamp())


def test_of_the_other_side_it_is_read_from_the_connection(tmp_path: Path) -> None:
    ends = dt.datetime(2049, 12, 31, tzinfo=dt.UTC)
    der = x509.load_pem_x509_certificate(_write(tmp_path / "server.crt", ends)).public_bytes(serialization.Encoding.DER)

    def connection(shown: bytes | None) -> Any:
        return SimpleNamespace(getpeercert=lambda *, binary_form: shown if binary_form else {})

    assert shown_by(connection(der)) == Validity(BEGINS.timestamp(), ends.timestamp())
    assert shown_by(connection(der[:40])) is None
    assert shown_by(connection(None)) is None
    given_up = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="x")
    assert shown_by(given_up) is None, "TLS has not begun, or has failed"


def test_times_of_the_last_century(tmp_path: Path) -> None:
    begins, ends = dt.datetime(1985, 1, 1, tzinfo=dt.UTC), dt.datetime(1999, 12, 31, tzinfo=dt.UTC)
    _write(tmp_path / "old.crt", ends, begins=begins)
    assert validity(tmp_path / "old.crt") == Validity(begins.timestamp(), ends.timestamp())


def test_of_a_chain_the_first_counts_wherever_the_key_stands(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("gateway", left=dt.timedelta(minutes=5))
    file = tmp_path / "whole.pem"
    file.write_bytes(
        b"Subject: CN=g\xfcnther\n"
        + issued.key.read_bytes()
        + issued.certificate.read_bytes()
        + authority.ca_file.read_bytes()
    )
    assert validity(file) == validity(issued.certificate)
    assert validity(file) != validity(authority.ca_file)


@pytest.mark.parametrize("damage", ["absent", "empty", "key alone", "cut", "not base64", "other DER"])
def test_what_is_no_certificate_is_said_so(tmp_path: Path, damage: str) -> None:
    issued = Authority(tmp_path).issue("gateway")
    pem = issued.certificate.read_text()
    file = tmp_path / "bad.pem"
    head, tail = "-----BEGIN CERTIFICATE-----\n", "\n-----END CERTIFICATE-----\n"
    texts = {
        "empty": "", "key alone": issued.key.read_text(), "cut": head + pem.splitlines()[1] + tail,
        "not base64": head + "!!!" + tail, "other DER": head + "BAAA" + tail,
    }  # fmt: skip
    if damage in texts:
        file.write_text(texts[damage])
    with pytest.raises(ValueError, match=r"bad\.pem"):
        validity(file)


DAY = 86_400.0


@pytest.mark.parametrize(("life_days", "margin_days"), [(1, 0.1), (10, 1), (365, 1)])
def test_a_certificate_is_replaced_a_tenth_of_its_life_or_a_day_early(life_days: float, margin_days: float) -> None:
    assert margin_s(Validity(5 * DAY, (5 + life_days) * DAY)) == pytest.approx(margin_days * DAY)


@pytest.mark.parametrize(("now_days", "new_ends", "reason"), [
    (8.9, 30, None),  # there is time
    (9.0, 30, "certificate"),
    (9.0, 10, None),  # the file still has the old one
    (9.0, 9.5, None),  # an older one
    (11.0, 30, "certificate"),  # too late, and better than never
])  # fmt: skip
def test_a_session_is_renewed_for_a_better_certificate(now_days: float, new_ends: float, reason: str | None) -> None:
    shown = Shown("gateway", certificate=Validity(0, 10 * DAY))
    assert why_renew(shown, None, Validity(0, new_ends * DAY), now_days * DAY) == reason
    assert why_renew(shown, None, None, now_days * DAY) is None
    assert why_renew(Shown("gateway"), None, Validity(0, new_ends * DAY), now_days * DAY) is None
