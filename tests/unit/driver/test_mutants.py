"""Rewriters of events change what they are about and nothing else."""

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.driver.mutants import refusal_as_end
from kvfence.protocol.events import Event, Received
from kvfence.protocol.messages import Commit, EndReason, Envelope, Failed, Message

OURS, THEIRS = Incarnation("0" * 32), Incarnation("1" * 32)
ATTEMPT = AttemptId(OURS, 1)


def heard(message: Message) -> Event:
    """Give the event of a message."""
    return Received(Envelope(THEIRS, OURS, message))


def test_only_a_refusal_for_size_is_taken_for_an_end() -> None:
    """Every other failure, and every other message, stays what it is."""
    assert refusal_as_end(heard(Failed(ATTEMPT, EndReason.DOES_NOT_FIT))) == heard(Failed(ATTEMPT, EndReason.STOP))
    for message in (Failed(ATTEMPT, EndReason.MODEL_ERROR), Commit(ATTEMPT)):
        assert refusal_as_end(heard(message)) == heard(message)
