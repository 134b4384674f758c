"""A certificate authority for tests: made in milliseconds, without a JVM, and able to issue anew."""

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Issued:
    """PEM files of one certificate."""

    certificate: Path
    key: Path

    def server_context(self, client_ca: Path | None = None) -> ssl.SSLContext:
        """For a server that shows it, and wants a certificate of this authority if one is given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority:
    """Writes its own certificate to ``ca_file`` and issues others below ``directory``, which is made."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._certificate = (
            _begun(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, file: str | None = None, left: dt.timedelta = dt.timedelta(days=2)) -> Issued:
        """A certificate for server and client use with this common name; as a server it is localhost and 127.0.0.1.
        ``file`` is the name of its files when it shall replace another; ``left`` how long it is good from now on, an
        hour of its life being over."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        uses = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _begun(subject, self._name, key, left)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._directory / (file or name)
        issued = Issued(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        issued.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return issued

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority alone, and shows a certificate with this common name if one is
        given."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if name is not None:
            issued = self.issue(name)
            context.load_cert_chain(issued.certificate, issued.key)
        return context


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, left: dt.timedelta = dt.timedelta(days=2)
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + left)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=sign_certificates, crl_sign=sign_certificates, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
