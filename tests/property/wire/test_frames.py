"""Frames: what was said is what is heard, and junk is the peer's error."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.manifest import Manifest
from kvfence.protocol.messages import Abort, Envelope, Grant, Offer, Sent
from kvfence.wire.codec import frame_codec
from kvfence.wire.frames import Frame

incarnations = st.binary(min_size=16, max_size=16).map(lambda drawn: Incarnation(drawn.hex()))
attempts = st.builds(AttemptId, incarnations, st.integers(1, 2**63 - 1))
naturals = st.integers(0, 2**63 - 1)
pages = st.lists(st.integers(0, 2**40), max_size=8).map(tuple)
messages = st.one_of(
    st.builds(Offer, attempts, incarnations, naturals, naturals, naturals),
    st.builds(Grant, attempts, naturals, pages, st.text(max_size=32)),
    st.builds(Sent, attempts, naturals, st.builds(Manifest, naturals, incarnations, naturals, pages, st.just("l"))),
    st.builds(Abort, attempts),
)
frames = st.builds(Frame, incarnations, st.builds(Envelope, incarnations, incarnations, messages))
CODEC = frame_codec()


@settings(max_examples=100, deadline=None)
@given(frames)
def test_a_frame_is_read_back(frame: Frame) -> None:
    """Decoding gives back what was encoded, whatever the message."""
    assert CODEC.decode(CODEC.encode(frame)) == frame


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_junk_is_a_remote_error_and_nothing_else(junk: bytes) -> None:
    """Any bytes either are a frame or raise the one error for what a peer sent."""
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(CODEC.decode(junk), Frame)


@settings(max_examples=100, deadline=None)
@given(frames, st.data())
def test_a_cut_frame_is_a_remote_error(whole: Frame, data: st.DataObject) -> None:
    """A frame that ends early never decodes."""
    encoded = CODEC.encode(whole)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    with pytest.raises(RemoteProtocolError, match=str(len(cut))):
        CODEC.decode(cut)
