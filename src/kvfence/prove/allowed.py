"""What a node would have taken where a trace shows an event that is illegal for it."""

from collections.abc import Iterator
from itertools import chain

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import AttemptId, PassId
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    BatchEnded,
    DeadlinePassed,
    Event,
    PagesSealed,
    PassBegan,
    PassEnded,
    Resend,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node, Step, step
from kvfence.protocol.touched import named
from kvfence.trace.lines import line_of


def allowed_instead(rules: Rules, node: Node, event: Event) -> tuple[str, ...]:
    """Name the events of the same attempts that the node would take, and that would do something."""
    attempts = (
        sorted(a for a in named(node, event, Step(node, (), ())) if a in node.handoffs) or list(node.handoffs)[:1]
    )
    taken = (each for each in chain(_of_passes(node), *(_of_attempt(node, a) for a in attempts)))
    return tuple(line_of(each) for each in taken if _does_something(rules, node, each))


def _does_something(rules: Rules, node: Node, event: Event) -> bool:
    try:
        result = step(rules, node, event)
    except LocalProtocolError:
        return False
    return bool(result.commands) or result.node is not node


def _of_passes(node: Node) -> Iterator[Event]:
    if not isinstance(node, GatewayNode):
        yield from (PassEnded(pass_id) for pass_id in node.passes)


def _of_attempt(node: Node, attempt: AttemptId) -> Iterator[Event]:
    yield Resend(attempt)
    yield DeadlinePassed(attempt)
    if isinstance(node, DecodeNode):
        yield Verified(attempt, (), digests_match=True)
    if not isinstance(node, GatewayNode):
        yield PassBegan(PassId(node.last_pass + 1), (attempt,))
    if isinstance(node, PrefillNode):
        handoff = node.handoffs[attempt]
        yield from (BatchEnded(attempt, batch, success=True, source_quiet=True) for batch, _ in handoff.batches)
        yield PagesSealed(attempt, handoff.num_sealed + 1, tails_zeroed=True, digest=handoff.digest)
