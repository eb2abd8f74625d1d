"""The guard's certificate authority, the certificate that it signs, and when they are renewed.

All of it is pure except for randomness: the time is a parameter.
"""

from __future__ import annotations

import hmac
import re
import secrets
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Span(NamedTuple):
    """The lifetime of a certificate, and how long before its end it is renewed."""

    life: timedelta
    renewed: timedelta


AUTHORITY = Span(timedelta(days=3650), timedelta(days=365))
SERVING = Span(timedelta(days=90), timedelta(days=30))
_EARLY = timedelta(hours=1)  # how much the clocks of a cluster may differ
_KEY_BYTES = 32
_KEY = re.compile(rb"[0-9a-f]{64}")
WORD = timedelta(hours=1)  # how long one word is in the paths
_MOST = 4  # authorities in the bundle; there are more than two only after damage
# What the library raises for malformed certificates and keys, and for kinds that cgpu never makes.
_FOREIGN = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_AUTHORITY, _GUARD = (
    x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    for name in ("cgpu-guard authority", "cgpu-guard")
)


class Keys(NamedTuple):
    """The keys and certificates that all replicas share, in PEM except for ``path``.

    All are empty at first.

    Attributes:
        authorities: the certificates that API servers are to trust, the newest first.
        signer: the private key of the newest authority; older ones no longer sign.
        chain: the certificate that the guard serves, signed by an authority.
        key: the private key of that certificate.
        path: the secret key from which the words in paths are computed, as hexadecimal digits.
    """

    authorities: bytes = b""
    signer: bytes = b""
    chain: bytes = b""
    key: bytes = b""
    path: bytes = b""


class Words(NamedTuple):
    """The secret words with which the paths begin: of this hour, the last and the next one."""

    now: str
    before: str
    after: str


class _Pair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def renew_keys(keys: Keys, host: str, now: datetime) -> Keys:
    """Return ``keys`` with everything that is due, damaged or missing made anew.

    A year before an authority expires, it signs a last certificate, its key is dropped, and it gets
    a successor. So API servers trust the new authority long before it signs anything.

    Args:
        keys: the keys as they are; they may be damaged or missing.
        host: the name or address that API servers call.
        now: the time, with a time zone.
    """
    path = keys.path if _KEY.fullmatch(keys.path) else secrets.token_hex(_KEY_BYTES).encode()
    return _renew_certificates(keys, host, now)._replace(path=path)


def _renew_certificates(keys: Keys, host: str, now: datetime) -> Keys:
    """Keep or renew authority and certificate: see ``renew_keys``."""
    known = _load_authorities(keys.authorities, now)
    pair = _match_key(known[:1], keys.signer)
    if pair is None:
        pair = _new_authority(now)
        return _assemble_keys([pair.certificate, *known][:_MOST], pair, keys, host, now)
    if _compute_time_left(pair.certificate, now) >= AUTHORITY.renewed:
        return _assemble_keys(known, pair, keys, host, now)
    last = _sign_certificate(pair, host, now)
    pair = _new_authority(now)
    return Keys(_certificates_to_pem([pair.certificate, *known][:_MOST]), _key_to_pem(pair), *last)


def compute_words(keys: Keys, now: datetime) -> Words:
    """Return the words of this hour, the last and the next one; "" if there is no key.

    Words change because they leak: an API server that cannot call a webhook shows its path to the
    user whose request it refuses.
    """
    number = int(now.timestamp() // WORD.total_seconds())
    return Words(*(_compute_word(keys.path, number + step) for step in (0, -1, 1)))


def _compute_word(key: bytes, number: int) -> str:
    return hmac.new(key, str(number).encode(), "sha256").hexdigest() if key else ""


def read_expiry(keys: Keys) -> datetime:
    """Return when the certificate expires."""
    return x509.load_pem_x509_certificates(keys.chain)[0].not_valid_after_utc


def _assemble_keys(
    known: list[x509.Certificate], pair: _Pair, keys: Keys, host: str, now: datetime
) -> Keys:
    """Return keys with the authorities ``known``; if the certificate is unfit, sign a new one."""
    shown = (
        (keys.chain, keys.key)
        if _is_serving(keys, known, host, now)
        else _sign_certificate(pair, host, now)
    )
    return Keys(_certificates_to_pem(known), _key_to_pem(pair), *shown)


def _load_authorities(pem: bytes, now: datetime) -> list[x509.Certificate]:
    """Return the certificates in ``pem`` that are undamaged authorities and valid now."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except _FOREIGN:
        return []
    return [each for each in found if _is_valid(each, now) and _is_authority(each)]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        about = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except _FOREIGN:
        return False
    return about.ca and _is_issued_by(certificate, certificate)


def _match_key(certificates: list[x509.Certificate], pem: bytes) -> _Pair | None:
    """Return the first certificate paired with the key in ``pem``; None if they do not match."""
    if not certificates:
        return None
    try:
        key = load_pem_private_key(pem, None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            fits = key.public_key() == certificates[0].public_key()
            return _Pair(certificates[0], key) if fits else None
    except _FOREIGN:
        pass
    return None


def _is_serving(keys: Keys, known: list[x509.Certificate], host: str, now: datetime) -> bool:
    """Return whether the certificate is for ``host``, issued by one of ``known``, and not due."""
    try:
        pair = _match_key(x509.load_pem_x509_certificates(keys.chain), keys.key)
        if pair is None or _read_names(pair.certificate) != [_to_general_name(host)]:
            return False
    except _FOREIGN:
        return False
    certificate = pair.certificate
    lasts = _is_valid(certificate, now) and _compute_time_left(certificate, now) >= SERVING.renewed
    return lasts and any(_is_issued_by(certificate, each) for each in known)


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except _FOREIGN:
        return False
    return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _compute_time_left(certificate: x509.Certificate, now: datetime) -> timedelta:
    return certificate.not_valid_after_utc - now


def _read_names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return [*certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def _to_general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = {"key_cert_sign": True, "crl_sign": True, "digital_signature": False}
    builder = (
        _start_builder(_AUTHORITY, key.public_key(), now, now + AUTHORITY.life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_usage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _sign_certificate(signer: _Pair, host: str, now: datetime) -> tuple[bytes, bytes]:
    """Return a new certificate for ``host``, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + SERVING.life, signer.certificate.not_valid_after_utc)
    usage = {"key_cert_sign": False, "crl_sign": False, "digital_signature": True}
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = (
        _start_builder(_GUARD, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_make_usage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_to_general_name(host)]), critical=False)
        .add_extension(issuer, critical=False)
    )
    pair = _Pair(builder.sign(signer.key, hashes.SHA256()), key)
    return _certificates_to_pem([pair.certificate]), _key_to_pem(pair)


def _start_builder(
    name: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(_AUTHORITY)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(until)
    )


def _make_usage(*, key_cert_sign: bool, crl_sign: bool, digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _certificates_to_pem(found: list[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def _key_to_pem(pair: _Pair) -> bytes:
    return pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
