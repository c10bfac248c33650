"""Which properties a step can break or reach at all: told from its node's kind and from what was said and done in it.

A table beside ``properties.py``, so that nobody asks a gateway about its pages, or about a fence where no page moved.
The functions there answer alone, too; ``tests/property/protocol/test_touched.py`` holds the table against them.
"""

from functools import lru_cache

from msgspec import Struct

from kvfence.protocol.commands import Deliver, Emit, Move, Send, StartPrefill
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.events import (
    ClientGone,
    DeadlinePassed,
    PassEnded,
    PeerGone,
    PeerSilent,
    Received,
    Resend,
    SessionRebuilt,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Decision
from kvfence.protocol.messages import Drained, Ended, Failed, Refused, Unknown
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import OF_NODES, OF_STEPS, SOMETIMES, NodeProperty, StepProperty, Taken

Kinds = frozenset[type]

_WORKERS = (PrefillNode, DecodeNode)
_NODES: dict[str, tuple[type, ...]] = {
    "accounting": _WORKERS,
    "waiting-wait": _WORKERS,
    "batches-bounded": (PrefillNode,),
    "work-holds-pages": _WORKERS,
    "holders-agree": (PrefillNode,),
    "holders-share-a-salt": (PrefillNode,),
    "cached-is-verified": (PrefillNode,),
    "cache-is-bounded": (PrefillNode,),
    "cache-makes-room": (PrefillNode,),
    "revoked-is-quarantined": (DecodeNode,),
    "one-attempt-feeds": (GatewayNode,),
    "over-is-forgotten": _WORKERS,
}
"""The nodes that a property speaks of."""

_ALWAYS: tuple[type, ...] = (object,)
_ENDS = (Ended, Failed, Refused)
_STEPS: dict[str, tuple[type, ...]] = {
    "serials-grow": (Move,),
    "floors-grow": _ALWAYS,
    "waiting-is-fifo": _ALWAYS,
    "adopted-is-verified": (Move,),
    "emitted-is-clean": (Emit,),
    "fence-has-proof": (Move,),
    "no-timer-frees": (DeadlinePassed,),
    "drained-is-quiet": (Drained,),
    "held-stays": (Move,),
    "misread-is-quarantined": (Move,),
    "last-page-is-own": (StartPrefill,),
    "oldest-stays": _ALWAYS,
    "delivered-in-order": (Deliver,),
    "no-cut-transfer": (ClientGone,),
    "layouts-agree": (Move,),
    "silence-moves-no-page": (PeerSilent,),
    "adopted": (Move,),
    "preempted": _ENDS,
    "fenced-by-drain": (Drained,),
    "fenced-by-exit": (PeerGone,),
    "fenced-by-session": (SessionRebuilt,),
    "unknown-said": (Unknown,),
    "tombstone-used": (Decision,),
    "resend-needed": (Resend,),
    "cancelled-in-transfer": (Decision,),
    "mismatch-at-adopt": (Decision,),
    "mismatch-at-read": (Decision,),
    "digest-differs": (Decision,),
    "deadline-passed": _ENDS,
    "prefix-shared": (StartPrefill,),
    "shared-at-once": (StartPrefill,),
    "evicted": (StartPrefill,),
    "shared-mismatch": (PassEnded,),
    "silence-told": (PeerSilent,),
    "worker-lost": _ENDS,
}
"""What a step must have in it, one of these, for the property to have a say: an event, a message or a command.

``Decision`` stands for one that did not hold, ``object`` for any step at all.
"""


class Relevant(Struct, frozen=True):
    """The properties that a step of some kinds can break, or reach."""

    nodes: tuple[NodeProperty, ...]
    steps: tuple[StepProperty, ...]
    sometimes: tuple[StepProperty, ...]


def kinds_of(taken: Taken) -> Kinds:
    """Name what was said and done in a step."""
    event, step = taken.event, taken.step
    kinds: list[type] = [type(event)]
    if isinstance(event, Received):
        kinds.append(type(event.envelope.message))
    kinds += [type(command.message) if isinstance(command, Send) else type(command) for command in step.commands]
    for decision in step.decisions:
        if not decision.holds:
            kinds.append(Decision)
            break
    return _joined(tuple(kinds))


@lru_cache(4096)
def _joined(kinds: tuple[type, ...]) -> Kinds:
    """Join kinds into one set, and the same kinds into the same set: its hash is known then."""
    return frozenset((object, *kinds))


@lru_cache(4096)
def relevant_to(node: type, kinds: Kinds) -> Relevant:
    """Give the properties of a kind of node and of what a step of it has in it."""
    nodes = tuple(p for p in OF_NODES if node in _NODES[p.name])
    steps, sometimes = (
        tuple(p for p in properties if not kinds.isdisjoint(_STEPS[p.name])) for properties in (OF_STEPS, SOMETIMES)
    )
    return Relevant(nodes, steps, sometimes)
