"""The webhooks' own certificates. No clock, no socket, no file: ``now`` is passed in (aware of its time zone).

Each pair is a CA of its own with one serving certificate; the CA's key is thrown away once it has signed. A new pair is
made long before the last one expires and is not served before every replica and the API server can know its CA, so that
no handshake fails at a renewal:

    made: CA bundle old + new, old served ── SPREAD ── new served ── old expires: out of the bundle
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Of a pair, from its making.
LIFE = timedelta(days=90)
#: A new one is made when the last has this left.
RENEW_LEFT = timedelta(days=30)
#: From the making of a pair to its serving: replicas look every minute, and the API server watches its configurations.
SPREAD = timedelta(minutes=10)
#: Valid before it was made, for clocks that are behind ours.
BACKDATED = timedelta(hours=1)


class BadPairError(ValueError):
    """A Secret whose certificates cannot be served; the message is a sentence."""


@dataclass(frozen=True)
class Pair:
    """PEM. ``key``: of the serving certificate."""

    ca: str
    certificate: str
    key: str


def make(names: Sequence[str], now: datetime) -> Pair:
    """``names``: DNS names and addresses at which the webhooks are reached; the first is the subject."""
    begin, end = now - BACKDATED, now + LIFE
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # A subject of its own: two CAs of one name in a bundle are tried in turn at best.
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"drainagent webhook CA {serial % 2**32:08x}")])
    ca_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        x509.CertificateBuilder(issuer, issuer, ca_key.public_key(), serial, begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(ca_identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(_pem(ca), _pem(certificate), private.decode())


def due(pairs: Sequence[Pair], names: Sequence[str], now: datetime) -> bool:
    """No pair for these names has RENEW_LEFT of its life left."""
    return not any(_fits(pair, names) and _ends(pair) - now > RENEW_LEFT for pair in pairs)


def renewed(pairs: Sequence[Pair], names: Sequence[str], now: datetime) -> tuple[Pair, ...]:
    """What is to be kept, oldest first: those that are still valid, and a new one where it is due."""
    kept = sorted((pair for pair in pairs if _ends(pair) > now), key=made_at)
    return (*kept, make(names, now)) if due(kept, names, now) else tuple(kept)


def serving(pairs: Sequence[Pair], names: Sequence[str], now: datetime) -> Pair:
    """The one to serve: the newest that all can know of, else the oldest. ValueError when none is for these names."""
    fitting = sorted((pair for pair in pairs if _fits(pair, names) and _ends(pair) > now), key=made_at)
    if not fitting:
        raise ValueError(f"no certificate is for {', '.join(names)}")
    known = [pair for pair in fitting if now - made_at(pair) >= SPREAD]
    return known[-1] if known else fitting[0]


def bundle(pairs: Sequence[Pair], now: datetime) -> str:
    """The CAs to be trusted, PEM, oldest first."""
    return "".join(pair.ca for pair in sorted(pairs, key=made_at) if _ends(pair) > now)


def made_at(pair: Pair) -> datetime:
    return _read(pair.certificate).not_valid_before_utc + BACKDATED


def to_data(pairs: Sequence[Pair]) -> dict[str, str]:
    """A Secret's data: 0-ca.crt, 0-tls.crt, 0-tls.key of the oldest, and so on."""
    return {
        f"{index}-{name}": base64.b64encode(text.encode()).decode()
        for index, pair in enumerate(pairs)
        for name, text in (("ca.crt", pair.ca), ("tls.crt", pair.certificate), ("tls.key", pair.key))
    }


def from_data(data: Mapping[str, str]) -> tuple[Pair, ...]:
    """The pairs of a Secret's data, each checked; other keys are nobody's. BadPairError."""
    found = []
    for index in sorted({int(match[1]) for key in data if (match := re.fullmatch(r"([0-9]{1,3})-\w+\.\w+", key))}):
        texts = []
        for name in ("ca.crt", "tls.crt", "tls.key"):
            key = f"{index}-{name}"
            try:
                texts.append(base64.b64decode(data[key], validate=True).decode())
            except KeyError:
                raise BadPairError(f"the key {key} is missing") from None
            except (binascii.Error, UnicodeDecodeError, TypeError):
                raise BadPairError(f"the key {key} is no text in base64") from None
        pair = Pair(*texts)
        _check(pair, index)
        found.append(pair)
    return tuple(found)


def _check(pair: Pair, index: int) -> None:
    try:
        ca, certificate = _read(pair.ca), _read(pair.certificate)
        key = serialization.load_pem_private_key(pair.key.encode(), password=None)
        certificate.verify_directly_issued_by(ca)
        if key.public_key() != certificate.public_key():
            raise BadPairError(f"{index}-tls.key is not the key of {index}-tls.crt")
    except BadPairError:
        raise
    except InvalidSignature:
        raise BadPairError(f"{index}-tls.crt is not of the CA {index}-ca.crt") from None
    except (ValueError, TypeError) as error:
        raise BadPairError(f"pair {index} cannot be read: {error}") from None


def _fits(pair: Pair, names: Sequence[str]) -> bool:
    there = _read(pair.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {_general_name(name) for name in names} <= set(there)


def _ends(pair: Pair) -> datetime:
    """Both of a pair end at once."""
    return _read(pair.certificate).not_valid_after_utc


def _read(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
