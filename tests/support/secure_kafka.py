"""A broker with TLS and SASL listeners beside the plain one, and certificates made for it.

    with SecureBroker() as broker:
        broker.servers["BOTH"]          host:port of SASL over TLS; LOGIN: SASL alone; TLS; MUTUAL: TLS both ways
        broker.certificates.authority   PEM of the authority that signed the broker's certificate

Users: `keyfold` may do everything, `stranger` nothing; passwords are in PASSWORDS. PLAIN, SCRAM-SHA-256 and -512.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from keyfold_demo.broker import KafkaBroker
from keyfold_demo.children import free_port

PASSWORDS: Final = {"keyfold": "s3cr3t-of-keyfold", "stranger": "s3cr3t-of-a-stranger"}
STORE_PASSWORD: Final = "s3cr3t-of-the-store"
_PROTOCOLS: Final = {"TLS": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
_MECHANISMS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority, its certificates for a broker and a client, and an authority that signed neither."""

    authority: Path
    broker: Path
    client: Path
    client_key: Path
    client_store: Path
    other_authority: Path


def make_certificates(folder: Path) -> Certificates:
    """Create certificates for 127.0.0.1, valid for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    key, authority = _authority("authority")
    other = _authority("another authority")[1]
    broker_key, broker = _signed("broker", key, authority)
    client_key, client = _signed("client", key, authority)
    store = pkcs12.serialize_key_and_certificates(
        b"client", client_key, client, [authority], serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    )
    return Certificates(
        authority=_write(folder / "authority.pem", _pem(authority)),
        broker=_write(folder / "broker.pem", _key_pem(broker_key) + _pem(broker) + _pem(authority)),
        client=_write(folder / "client.pem", _pem(client)),
        client_key=_write(folder / "client-key.pem", _key_pem(client_key)),
        client_store=_write(folder / "client.p12", store),
        other_authority=_write(folder / "other.pem", _pem(other)),
    )


class SecureBroker(KafkaBroker):
    """A broker of five listeners. `servers` has the addresses of all but the plain one."""

    def __init__(self, folder: Path) -> None:
        self.certificates = make_certificates(folder / "certificates")
        self.servers: dict[str, str] = {}
        users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            + ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:keyfold;User:CN=client",
        }
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        for name in ("login", "both"):
            jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            settings[f"listener.name.{name}.plain.sasl.jaas.config"] = jaas
            settings[f"listener.name.{name}.scram-sha-256.sasl.jaas.config"] = scram
            settings[f"listener.name.{name}.scram-sha-512.sasl.jaas.config"] = scram
        super().__init__(settings=settings, folder=folder)

    def start(self) -> None:
        """Start, and register the broker's SCRAM users."""
        super().start()
        for mechanism in _MECHANISMS:  # a user may be altered once in a request
            wanted: list[Any] = [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
                for user, password in PASSWORDS.items()
            ]
            for answer in self.admin.alter_user_scram_credentials(wanted, request_timeout=60).values():
                answer.result(60)

    def _write_properties(self, controller_port: int) -> Path:
        path = super()._write_properties(controller_port)
        self.servers = {name: f"127.0.0.1:{free_port()}" for name in _PROTOCOLS}
        more = ",".join(f"{name}://{server}" for name, server in self.servers.items())
        lines = path.read_text().splitlines()
        path.write_text(
            "\n".join(f"{line},{more}" if line.startswith(("listeners=", "advertised.")) else line for line in lines)
        )
        return path


# What Python 3.13 and newer ask of an authority, besides the key identifiers.
_SIGNS: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def _signed(
    name: str, authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("localhost")])
    builder = (
        _builder(_name(name), authority.subject, key)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    return key, builder.sign(authority_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: Any) -> bytes:
    found: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return found


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
