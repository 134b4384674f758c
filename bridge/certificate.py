"""Reads the validity of a certificate, without a library for certificates.

Python's ``ssl`` gives it only for the peer's certificate. Loading ``cryptography`` would take 10 MiB in every worker.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


class Validity(NamedTuple):
    """When a certificate begins and ends to be valid, in seconds since 1970."""

    begins_s: float
    ends_s: float


def validity(file: Path) -> Validity:
    """The validity of the first certificate in a PEM file; the others are its authorities.

    Raises ValueError for another file. Blocks for one small file.
    """
    try:
        text = file.read_text(encoding="latin-1")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise ValueError(f"{file} has no certificate in PEM form")
    try:
        return validity_of_der(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]))
    except ValueError as error:
        raise ValueError(f"the certificate in {file} cannot be read: {error}") from error


def validity_of_der(der: bytes) -> Validity:
    """The validity of a certificate in DER form. Raises ValueError for other bytes."""
    try:
        return _validity(der)
    except IndexError as error:
        raise ValueError("it is cut off") from error


def shown_by(secured: ssl.SSLSocket | ssl.SSLObject) -> Validity | None:
    """The validity of the peer's certificate; None when it cannot be read. Does not block."""
    try:
        der = secured.getpeercert(binary_form=True)
        return None if der is None else validity_of_der(der)
    except ValueError:  # also of a connection that TLS has given up
        return None


def _validity(der: bytes) -> Validity:
    """RFC 5280, 4.1: Certificate { TBSCertificate { [version], serial, algorithm, issuer, validity { from, to }, …"""
    at = _enter(der, _enter(der, 0))
    if der[at] == _VERSION:
        at = _after(der, at)
    for _ in range(3):
        at = _after(der, at)
    begins = _enter(der, at)
    return Validity(_moment(der, begins), _moment(der, _after(der, begins)))


def _header(der: bytes, at: int) -> tuple[int, int]:
    """Begin and length of the content of the element at ``at`` (X.690, 8.1.3)."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[at : at + size], "big"), at + size
    return at, length


def _enter(der: bytes, at: int) -> int:
    if der[at] != _SEQUENCE:
        raise ValueError(f"element 0x{der[at]:02X} where a sequence belongs")
    return _header(der, at)[0]


def _after(der: bytes, at: int) -> int:
    content, length = _header(der, at)
    return content + length


def _moment(der: bytes, at: int) -> float:
    """The time in the element at ``at``, in seconds since 1970. Raises ValueError."""
    content, length = _header(der, at)
    text = der[content : content + length].decode("ascii")
    if der[at] == _UTC_TIME:  # two digits of the year: 50 and more are the last century's
        text = ("19" if text[:2] >= "50" else "20") + text
    elif der[at] != _GENERALIZED_TIME:
        raise ValueError(f"element 0x{der[at]:02X} where a time belongs")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
