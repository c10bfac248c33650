"""What must hold, each property stated once: of a node, of a step, of a whole world.

*always*: after every step. *sometimes*: at least once, or the run tested nothing. *at rest*: once nothing is left
to happen. The live server, simulation and search check the same functions. A ``World`` is what a driver of the whole
system can say; a node alone cannot know what bytes a token was computed from.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from kvfence.core.ids import RequestId
from kvfence.protocol import node_properties as node
from kvfence.protocol import step_properties as at_step
from kvfence.protocol.events import PeerGone, Resend, SessionRebuilt
from kvfence.protocol.messages import EndReason, Unknown
from kvfence.protocol.node_properties import HeldLot, held_lots
from kvfence.protocol.step import Node
from kvfence.protocol.step_properties import Taken, decided, ended, fenced_by, hears, moves
from kvfence.protocol.transitions import PageMove

__all__ = ["HeldLot", "Taken", "World", "broken_by", "broken_in", "held_lots", "reached_by"]

Kind = Literal["always", "sometimes", "at rest"]


class World(Protocol):
    """What a driver of all nodes knows."""

    @property
    def nodes(self) -> Iterable[Node]:
        """The node of every live process."""

    @property
    def disagreements(self) -> Collection[object]:
        """Pages of which a ledger and its node say different things."""

    @property
    def wrong_reads(self) -> Collection[object]:
        """Tokens that left although they were computed from bytes that were not their sequence's own."""

    @property
    def stray_writes(self) -> Collection[object]:
        """Writes, other than misdirected ones, that landed in a page neither granted for them nor quarantined."""

    @property
    def changed_sources(self) -> Collection[object]:
        """Posted writes that read a source page after it was somebody else's."""

    @property
    def stale_slots(self) -> Collection[object]:
        """Pages posted with another request's bytes behind their last token."""

    @property
    def ends(self) -> Mapping[RequestId, Collection[EndReason]]:
        """What the client of every submitted request was told, in order."""

    @property
    def misfits(self) -> Collection[RequestId]:
        """Requests that fit no pool or not the context."""


class NodeProperty(Struct, frozen=True):
    """Holds of every node, whatever happens around it."""

    name: str
    statement: str
    holds: Callable[[Node], bool]
    kind: Kind = "always"


class StepProperty(Struct, frozen=True):
    """Holds of every step, or is reached by one."""

    name: str
    statement: str
    holds: Callable[[Taken], bool]
    kind: Kind = "always"


class WorldProperty(Struct, frozen=True):
    """Holds of the whole system."""

    name: str
    statement: str
    holds: Callable[[World], bool]
    kind: Kind = "always"


def _name(function: Callable[..., bool]) -> str:
    return function.__name__.replace("_", "-")


def _statement(function: Callable[..., bool]) -> str:
    return (function.__doc__ or "").strip()


OF_NODES: tuple[NodeProperty, ...] = tuple(
    NodeProperty(_name(holds), _statement(holds), holds)
    for holds in (
        node.accounting,
        node.waiting_wait,
        node.batches_bounded,
        node.work_holds_pages,
        node.holders_agree,
        node.holders_share_a_salt,
        node.cached_is_verified,
        node.cache_is_bounded,
        node.cache_makes_room,
        node.revoked_is_quarantined,
        node.one_attempt_feeds,
        node.over_is_forgotten,
    )
)

OF_STEPS: tuple[StepProperty, ...] = tuple(
    StepProperty(_name(holds), _statement(holds), holds)
    for holds in (
        at_step.serials_grow,
        at_step.floors_grow,
        at_step.waiting_is_fifo,
        at_step.adopted_is_verified,
        at_step.emitted_is_clean,
        at_step.fence_has_proof,
        at_step.no_timer_frees,
        at_step.drained_is_quiet,
        at_step.held_stays,
        at_step.misread_is_quarantined,
        at_step.last_page_is_own,
        at_step.oldest_stays,
        at_step.delivered_in_order,
        at_step.no_cut_transfer,
        at_step.layouts_agree,
        at_step.silence_moves_no_page,
    )
)

OF_WORLDS: tuple[WorldProperty, ...] = (
    WorldProperty("ledger-agrees", "A node's lots and its page table say the same.", lambda w: not w.disagreements),
    WorldProperty(
        "reads-own-bytes", "No token leaves that read bytes of another sequence.", lambda w: not w.wrong_reads
    ),
    WorldProperty(
        "no-stray-write", "A write lands in pages granted for it or quarantined.", lambda w: not w.stray_writes
    ),
    WorldProperty("source-held", "A posted write reads what it was posted for.", lambda w: not w.changed_sources),
    WorldProperty(
        "sends-own-bytes", "Nothing of another request is sent behind the last token.", lambda w: not w.stale_slots
    ),
    WorldProperty("ends-once", "A client is told one end.", lambda w: all(len(e) <= 1 for e in w.ends.values())),
    WorldProperty(
        "refusal-arrives",
        "A request that does not fit is told so.",
        lambda w: all(EndReason.DOES_NOT_FIT in e for r, e in w.ends.items() if e and r in w.misfits),
    ),
    WorldProperty("all-answered", "Every message is answered.", lambda w: all(map(node.answered, w.nodes)), "at rest"),
    WorldProperty("nothing-stuck", "Every hand-off is over.", lambda w: all(map(node.at_rest, w.nodes)), "at rest"),
    WorldProperty(
        "pages-return", "Every page is free, or cached.", lambda w: all(map(node.all_free, w.nodes)), "at rest"
    ),
    WorldProperty("all-end", "Every client is told an end.", lambda w: all(w.ends.values()), "at rest"),
)


SOMETIMES: tuple[StepProperty, ...] = (
    StepProperty("adopted", "Pages are adopted.", lambda t: bool(moves(t, PageMove.ADOPT)), "sometimes"),
    StepProperty("preempted", "A young sequence is preempted.", ended(EndReason.PREEMPTED), "sometimes"),
    StepProperty("fenced-by-drain", "*Drained* ends a quarantine.", at_step.fenced_by_drain, "sometimes"),
    StepProperty("fenced-by-exit", "A reaped writer ends a quarantine.", fenced_by(PeerGone), "sometimes"),
    StepProperty("fenced-by-session", "A new session ends a quarantine.", fenced_by(SessionRebuilt), "sometimes"),
    StepProperty(
        "unknown-said", "A sender does not know when its writes end.", lambda t: hears(t, Unknown), "sometimes"
    ),
    StepProperty("tombstone-used", "A dispatch comes after its abort.", decided("tombstone"), "sometimes"),
    StepProperty(
        "resend-needed",
        "A message is lost and said again.",
        lambda t: isinstance(t.event, Resend) and bool(t.step.commands),
        "sometimes",
    ),
    StepProperty(
        "cancelled-in-transfer", "A client leaves after dispatch.", decided("settle-before-cancel"), "sometimes"
    ),
    StepProperty("mismatch-at-adopt", "A landed page is not as promised.", decided("stamp-at-adopt"), "sometimes"),
    StepProperty("mismatch-at-read", "A page in use is written over.", decided("stamp-at-read"), "sometimes"),
    StepProperty("digest-differs", "Landed bytes are not those promised.", decided("digest-matches"), "sometimes"),
    StepProperty("deadline-passed", "An attempt runs out of time.", ended(EndReason.DEADLINE), "sometimes"),
    StepProperty("prefix-shared", "A prompt begins with pages of another.", at_step.shares, "sometimes"),
    StepProperty("shared-at-once", "Several prompts at work hold one page.", at_step.shares_at_once, "sometimes"),
    StepProperty("evicted", "Cached pages make room.", at_step.evicts, "sometimes"),
    StepProperty("shared-mismatch", "A page that several hold is another's.", at_step.misread_together, "sometimes"),
    StepProperty("silence-told", "Clients of a silent worker are told.", at_step.tells_of_silence, "sometimes"),
    StepProperty("worker-lost", "A worker dies with work in hand.", ended(EndReason.WORKER_LOST), "sometimes"),
)


def broken_by(taken: Taken) -> list[str]:
    """Name the properties of nodes and steps that this step breaks."""
    after = taken.step.node
    broken = [p.name for p in OF_NODES if not p.holds(after)]
    return broken + [p.name for p in OF_STEPS if not p.holds(taken)]


def reached_by(taken: Taken) -> list[str]:
    """Name what must sometimes happen and happened in this step."""
    return [p.name for p in SOMETIMES if p.holds(taken)]


def broken_in(world: World, *, at_rest: bool = False) -> list[str]:
    """Name the properties that a world breaks now."""
    return [p.name for p in OF_WORLDS if (p.kind == "always" or at_rest) and not p.holds(world)]
