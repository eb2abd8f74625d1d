"""The guard's certificate over years, and after damage."""

from __future__ import annotations

import contextlib
import itertools
import re
import ssl
import tempfile
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_k8s.admission.certificates import (
    AUTHORITY,
    SERVING,
    Keys,
    compute_words,
    read_expiry,
    renew_keys,
)

pytestmark = pytest.mark.unit

Json = dict[str, Any]
HOST = "cgpu-guard.kube-system.svc"
NOW = datetime(2026, 11, 25, tzinfo=timezone.utc)
DAY = timedelta(days=1)


def authorities(keys: Keys) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(keys.authorities)


def shaken(authority: bytes, keys: Keys, host: str = HOST) -> str:
    """What OpenSSL says when a client that trusts ``authority`` calls ``host``; "": they agree.

    At the time that the test runs, which is within the life of what is made at that time.
    """
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile() as file:
        file.write(keys.chain + keys.key)
        file.flush()
        server.load_cert_chain(file.name)
    client = ssl.create_default_context(cadata=authority.decode())
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    ]
    try:
        for end in ends * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        return str(error.reason)
    return ""


def test_clients_that_trust_the_authority_believe_what_is_shown() -> None:
    now = datetime.now(timezone.utc)
    for host in (HOST, "127.0.0.1", "x" * 63 + ".svc"):
        keys = renew_keys(Keys(), host, now)
        assert shaken(keys.authorities, keys, host) == ""
    assert shaken(keys.authorities, keys, HOST) == "CERTIFICATE_VERIFY_FAILED"
    other = renew_keys(Keys(), host, now)
    assert shaken(other.authorities, keys, host) == "CERTIFICATE_VERIFY_FAILED"


def test_nothing_changes_until_a_month_before_the_end() -> None:
    keys = renew_keys(Keys(), HOST, NOW)
    assert read_expiry(keys) == NOW + SERVING.life
    due = NOW + SERVING.life - SERVING.renewed
    for now in (NOW, NOW + DAY, due):
        assert renew_keys(keys, HOST, now) == keys
    renewed = renew_keys(keys, HOST, due + timedelta(seconds=1))
    assert (renewed.authorities, renewed.signer) == (keys.authorities, keys.signer)
    assert read_expiry(renewed) > read_expiry(keys)
    assert renewed.key != keys.key


@pytest.mark.long
def test_for_thirty_years_whoever_knows_the_authorities_believes_what_is_shown() -> None:
    """API servers know the bundle of three days before, at worst."""
    keys, now, followed = renew_keys(Keys(), HOST, NOW), NOW, 0
    while now < NOW + 30 * 365 * DAY:
        now += 3 * DAY
        before, keys = keys, renew_keys(keys, HOST, now)
        [shown] = x509.load_pem_x509_certificates(keys.chain)
        for known in (before, keys):
            assert any(signs(each, shown) for each in authorities(known)), now
        for each in (shown, *authorities(keys)):
            assert each.not_valid_before_utc <= now < each.not_valid_after_utc
        assert read_expiry(keys) - now >= SERVING.renewed
        assert len(authorities(keys)) <= 2
        followed += authorities(keys)[0] != authorities(before)[0]
        assert keys == before or renew_keys(keys, HOST, now) == keys
    assert followed == 3  # each lasts ten years, less the last


def signs(authority: x509.Certificate, shown: x509.Certificate) -> bool:
    try:
        shown.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 (whatever is wrong)
        return False
    return True


def test_an_old_authority_signs_once_more_before_it_is_followed() -> None:
    keys = renew_keys(Keys(), HOST, NOW)
    [old] = authorities(keys)
    now = NOW + AUTHORITY.life - AUTHORITY.renewed + DAY
    both = renew_keys(keys, HOST, now)
    new, last = authorities(both)
    assert last == old
    assert both.signer != keys.signer
    [shown] = x509.load_pem_x509_certificates(both.chain)
    assert signs(old, shown)
    assert not signs(new, shown)
    assert renew_keys(both, HOST, now) == both
    [later] = x509.load_pem_x509_certificates(renew_keys(both, HOST, now + 61 * DAY).chain)
    assert signs(new, later)


def test_what_a_guard_finds_after_years_of_rest_is_renewed() -> None:
    keys = renew_keys(Keys(), HOST, NOW)
    for years in (1, 9.5, 9.99, 11):
        now = NOW + years * 365 * DAY
        found = renew_keys(
            renew_keys(keys, HOST, now), HOST, now
        )  # a nearly ended authority signs short ones
        assert read_expiry(found) - now >= SERVING.renewed
        assert renew_keys(found, HOST, now) == found


def test_a_certificate_for_another_name_or_from_the_future_is_replaced() -> None:
    keys = renew_keys(Keys(), HOST, NOW)
    renamed = renew_keys(keys, "cgpu-guard.other.svc", NOW)
    assert renamed.authorities == keys.authorities
    assert renamed.chain != keys.chain
    future = renew_keys(Keys(), HOST, NOW + 30 * DAY)
    found = renew_keys(future, HOST, NOW)
    assert not {*authorities(found)} & {*authorities(future)}
    assert renew_keys(found, HOST, NOW + timedelta(minutes=-30)) == found  # clocks differ a little


MADE = renew_keys(Keys(), HOST, NOW)
OTHER = renew_keys(Keys(), HOST, NOW)
DAMAGE = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.sampled_from([*MADE, *OTHER]),
    st.sampled_from(MADE).flatmap(
        lambda pem: st.integers(0, len(pem)).map(lambda at: pem[:at] + b"A" + pem[at + 1 :])
    ),
)


@settings(max_examples=300)
@given(st.builds(Keys, DAMAGE, DAMAGE, DAMAGE, DAMAGE))
def test_whatever_the_secret_has_is_mended_at_once(found: Keys) -> None:
    mended = renew_keys(found, HOST, NOW)
    assert renew_keys(mended, HOST, NOW) == mended
    [shown] = x509.load_pem_x509_certificates(mended.chain)
    assert any(signs(each, shown) for each in authorities(mended))
    assert len(authorities(mended)) <= 4


def test_the_word_of_a_path_is_another_one_each_hour() -> None:
    """And is right for an hour more and an hour less, by clocks that differ."""
    hours = [compute_words(MADE, NOW + timedelta(hours=number)) for number in range(4)]
    assert len({now for now, _, _ in hours}) == 4
    assert all(first[0] == second[1] for first, second in itertools.pairwise(hours))
    assert all(first[2] == second[0] for first, second in itertools.pairwise(hours))
    assert compute_words(OTHER, NOW)[0] not in compute_words(MADE, NOW)
    assert compute_words(Keys(), NOW) == ("", "", "")


def test_damage_replaces_what_is_damaged_and_no_more() -> None:
    keys = renew_keys(Keys(), HOST, NOW)
    for field in ("chain", "key"):
        found = renew_keys(keys._replace(**{field: b"x"}), HOST, NOW)
        assert (found.authorities, found.signer) == (keys.authorities, keys.signer)
    for word in (b"", b"../x", keys.path[:-1]):
        assert renew_keys(keys._replace(path=word), HOST, NOW)[:-1] == keys[:-1]
        assert re.fullmatch(rb"[0-9a-f]{64}", renew_keys(keys._replace(path=word), HOST, NOW).path)
    unsigned = renew_keys(keys._replace(signer=b""), HOST, NOW)
    assert (unsigned.chain, unsigned.key) == (keys.chain, keys.key)
    assert authorities(unsigned)[1:] == authorities(keys)
    misplaced = renew_keys(Keys(keys.chain, keys.key, *keys[2:]), HOST, NOW)
    assert not {*authorities(misplaced)} & {*x509.load_pem_x509_certificates(keys.chain)}
    for _ in range(9):
        unsigned = renew_keys(unsigned._replace(signer=b""), HOST, NOW)
    assert len(authorities(unsigned)) == 4
