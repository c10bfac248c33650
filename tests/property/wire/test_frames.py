"""Frames: what was said is what is heard, and junk is the peer's error."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.ids import AttemptId, Incarnation
from kvfence.core.manifest import Manifest
from kvfence.protocol.messages import Abort, Envelope, Grant, Offer, Sent
from kvfence.protocol.messages import Envelope as _Envelope
from kvfence.wire.codec import Codec

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
CODEC = Codec(_Envelope)


@settings(max_examples=100, deadline=None)
@given(st.builds(Envelope, incarnations, incarnations, messages))
def test_an_envelope_survives_its_frame(envelope: Envelope) -> None:
    """Decoding gives back what was encoded, whatever the message."""
    assert CODEC.decode(CODEC.encode(envelope)) == envelope


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_junk_is_a_remote_error_and_nothing_else(junk: bytes) -> None:
    """Any bytes either are an envelope or raise the one error for what a peer sent."""
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(CODEC.decode(junk), Envelope)


@settings(max_examples=100, deadline=None)
@given(st.builds(Envelope, incarnations, incarnations, messages), st.data())
def test_a_cut_frame_is_a_remote_error(envelope: Envelope, data: st.DataObject) -> None:
    """A frame that ends early never decodes."""
    frame = CODEC.encode(envelope)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    try:
        CODEC.decode(cut)
    except RemoteProtocolError as error:
        assert str(len(cut)) in str(error)
    else:
        raise AssertionError("a cut frame was read")
