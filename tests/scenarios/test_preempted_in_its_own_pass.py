"""Three sequences need a page in one pass and there is one: the youngest gives way to the second, and then is silent.

It once asked for room after it had been preempted, and so preempted the second, whose pages the pass then used.
"""

from kvfence.core.ids import PassId
from kvfence.protocol.events import PassBegan
from kvfence.protocol.transitions import DecodePhase
from tests.protocol.conversation import Conversation, attempt


def test_a_preempted_sequence_takes_nobody_with_it() -> None:
    """The pass runs the two older ones; only the youngest is ended."""
    talk = Conversation(decode_pages=6)
    for counter, num_tokens in ((1, 4), (2, 4), (3, 2)):
        talk.adopt(counter, num_tokens, 12)
    talk.decode_pass(3)
    assert talk.decode.pool.num_free == 1
    attempts = tuple(attempt(counter) for counter in (1, 2, 3))
    talk.feed("D", PassBegan(PassId(2), attempts, tuple((a, 1) for a in attempts)))
    assert talk.lines[-1].endswith("RunPass id=2 attempts=[#1 #2]")
    phases = [talk.decode.handoffs[a].phase for a in attempts]
    assert phases == [DecodePhase.RUNNING, DecodePhase.RUNNING, DecodePhase.CLOSED]
