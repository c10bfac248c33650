"""Frames are bounded, and errors never quote them."""

import msgspec
import pytest

from kvfence.core.errors import LocalProtocolError, RemoteProtocolError
from kvfence.protocol.messages import Abort, Envelope
from kvfence.wire.codec import Codec, frame_codec
from kvfence.wire.frames import Frame
from tests.pools import ATTEMPT, DECODE, PREFILL


def test_a_frame_over_the_bound_is_refused_on_both_sides() -> None:
    """Ours is a local error, a peer's a remote one."""
    codec = Codec(str, frame_bytes_max=10)
    with pytest.raises(LocalProtocolError, match="exceeds 10"):
        codec.encode("x" * 20)
    with pytest.raises(RemoteProtocolError, match="exceeds 10"):
        codec.decode(b"x" * 11)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"sender": 1},
        {"sender": "a", "envelope": {"sender": 1, "receiver": "b", "message": {"type": "Abort"}}},
        {"sender": "a", "envelope": {"sender": "a", "receiver": "b", "message": {"type": "Nonsense"}}},
        {"sender": "a", "payload": {"type": "Prompt", "token_ids": ["secret-marker"]}},
    ],
)
def test_a_well_formed_frame_of_another_shape_is_a_remote_error(content: object) -> None:
    """Missing fields, wrong types and unknown messages are refused, and their content is not repeated."""
    with pytest.raises(RemoteProtocolError) as caught:
        frame_codec().decode(msgspec.msgpack.encode(content))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_deep_nesting_is_a_remote_error() -> None:
    """A frame of nested arrays does not overflow the stack."""
    with pytest.raises(RemoteProtocolError):
        frame_codec().decode(b"\x91" * 100_000)


def test_an_envelope_names_both_lives() -> None:
    """Sender and receiver of a message are in its frame, for the guard that compares them."""
    frame = Frame(PREFILL, Envelope(PREFILL, DECODE, Abort(ATTEMPT)))
    codec = frame_codec()
    assert codec.decode(codec.encode(frame)) == frame
