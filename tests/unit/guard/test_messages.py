"""A message is one only from a holder of the key, unchanged."""

import pytest

from kvfence.core.ids import AttemptId, new_incarnation
from kvfence.guard.key import Key
from kvfence.guard.messages import Offer, RefusedAtPrefill, seal, unseal

KEY, OTHER = Key(b"k" * 32), Key(b"j" * 32)
OFFER = Offer(AttemptId(new_incarnation(), 1), 9, 1024, 0, 64)


def test_a_message_comes_back_as_it_was() -> None:
    """What was sealed with a key is opened with it."""
    mac, body = seal(KEY, OFFER)
    assert unseal(KEY, mac, body) == OFFER


def test_another_key_opens_nothing() -> None:
    """A message by another key is no message."""
    mac, body = seal(OTHER, OFFER)
    assert unseal(KEY, mac, body) is None


@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_byte_opens_nothing(place: int) -> None:
    """One changed byte, in code or body, is enough."""
    mac, body = seal(KEY, RefusedAtPrefill(9, 400, "too long"))
    changed = bytearray(body)
    changed[place] ^= 1
    assert unseal(KEY, mac, bytes(changed)) is None
    spoilt = bytearray(mac)
    spoilt[place] ^= 1
    assert unseal(KEY, bytes(spoilt), body) is None


def test_what_is_no_message_opens_nothing_even_with_the_key() -> None:
    """Bytes that are not a message of this version are none."""
    assert unseal(KEY, KEY.mac(b"\x00"), b"\x00") is None


def test_a_key_does_not_show_itself() -> None:
    """Neither text nor name of a key holds the secret; equal keys have equal names."""
    secret = "s3cret" * 6
    key = Key(secret.encode())
    assert secret not in repr(key)
    assert secret not in key.id
    assert key.id == Key(secret.encode()).id != KEY.id
