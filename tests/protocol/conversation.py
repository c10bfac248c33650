"""A conversation of three nodes, written down line by line: who was fed what, and what it did.

Messages wait in ``post`` until the script delivers them. Names: G gateway, P prefill, D decode; ``#1`` an attempt;
``s3[4 5]`` the pages 4 and 5 under serial 3.
"""

from collections.abc import Callable
from typing import Any

from kvfence.core.ids import FORMER_LIFE, AttemptId, Incarnation, PassId, RequestId, SessionId
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import Move, Resubmit, Send
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import (
    BatchEnded,
    Event,
    PagesSealed,
    PassBegan,
    PassEnded,
    PeerGone,
    PeerUp,
    Received,
    SessionRebuilt,
    Submit,
    TokensArrived,
    Verified,
)
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import Lot, new_pool
from kvfence.protocol.messages import Dispatch, EndReason, Envelope, Message
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.properties import Taken, broken_by
from kvfence.protocol.step import Node, step
from kvfence.protocol.transitions import Fence

G, P, D = (Incarnation(digit * 32) for digit in "123")
OTHER = Incarnation("4" * 32)
NAMES = {G: "G", P: "P", D: "D", OTHER: "another", FORMER_LIFE: "former"}
SECOND = 10**9


def attempt(counter: int) -> AttemptId:
    """The gateway's attempt of this number."""
    return AttemptId(G, counter)


class Conversation:
    """Three nodes and their post.

    Holds: ``lines``, what was said; ``nodes`` by letter; ``found``, by attempt, what prefill's driver saw.
    """

    def __init__(
        self,
        *,
        fence: Fence = Fence.PEER_EXIT,
        prefill_pages: int = 8,
        decode_pages: int = 8,
        rules: Rules | None = None,
        offers_waiting_max: int = 256,
        cached_lots_max: int = 0,
    ) -> None:
        capacity = Capacity(page_size=4, context_tokens=32, prefill_pages=prefill_pages, decode_pages=decode_pages)
        self.rules = rules or Rules.all()
        self.lines: list[str] = []
        self.salt = "salt-a" if cached_lots_max else ""
        self.found: dict[int, tuple[tuple[int, int], ...]] = {}
        self.post: list[tuple[str, Envelope]] = []
        decode = DecodeNode(Lives(D), capacity, "L", fence, new_pool(decode_pages), offers_waiting_max)
        self.nodes: dict[str, Node] = {
            "G": GatewayNode(Lives(G), capacity),
            "P": PrefillNode(Lives(P), capacity, "L", new_pool(prefill_pages), 2, cached_lots_max),
            "D": start_decode(self.rules, decode),
        }
        for name, peers in (("G", (P, D)), ("P", (G, D)), ("D", (G, P))):
            for peer in peers:
                self.feed(name, PeerUp(peer, writes=name == "D" and peer == P))
        if fence is Fence.NEW_SESSION:
            self.rebuild("session-1")
        else:
            self.feed("D", PeerGone(FORMER_LIFE, reaped=True))
        self.lines.clear()

    @property
    def decode(self) -> DecodeNode:
        """Decode's node."""
        node = self.nodes["D"]
        assert isinstance(node, DecodeNode)
        return node

    @property
    def prefill(self) -> PrefillNode:
        """Prefill's node."""
        node = self.nodes["P"]
        assert isinstance(node, PrefillNode)
        return node

    @property
    def gateway(self) -> GatewayNode:
        """The gateway's node."""
        node = self.nodes["G"]
        assert isinstance(node, GatewayNode)
        return node

    @property
    def text(self) -> str:
        """Everything so far."""
        return "\n".join(self.lines) + "\n"

    # ---- feeding

    def feed(self, name: str, event: Event, label: str | None = None) -> None:
        """Step a node, post what it sends, write the line down; every property holds or the test fails."""
        before = self.nodes[name]
        result = step(self.rules, before, event)
        if self.rules == Rules.all():
            assert broken_by(Taken(before, event, result)) == []
        self.nodes[name] = result.node
        refused = [f"!{d.guard}" for d in result.decisions if not d.holds]
        said = [*refused, *(show(command) for command in result.commands)] or ["-"]
        self.lines.append(f"{name} {label or show(event)}: {', '.join(said)}")
        for command in result.commands:
            if isinstance(command, Send):
                sender = self.nodes[name].lives.incarnation
                self.post.append((name, Envelope(sender, command.to, command.message)))
            elif isinstance(command, Resubmit):
                self.feed("G", self.placed(command))

    def deliver(self, number: int = 0, *, keep: bool = False) -> None:
        """Hand over one posted message, the oldest first."""
        sender, envelope = self.post[number] if keep else self.post.pop(number)
        to = NAMES[envelope.receiver]
        message = envelope.message
        found = self.found.get(message.attempt.counter, ()) if isinstance(message, Dispatch) else ()
        label = f"<- {sender} {show(message)}" + (f" found={_short(found)}" if found else "")
        self.feed(to, Received(envelope, found=found), label)

    def deliver_all(self) -> None:
        """Hand over everything posted, and what that leads to."""
        while self.post:
            self.deliver()

    def lose(self, number: int = 0) -> None:
        """A message is lost."""
        sender, envelope = self.post.pop(number)
        self.lines.append(f"  lost: {sender} {show(envelope.message)}")

    def take(self, kind: type[Message]) -> None:  # type: ignore[valid-type]
        """Hand over the first posted message of a kind, before what was posted earlier."""
        self.deliver(next(i for i, (_, e) in enumerate(self.post) if isinstance(e.message, kind)))

    # ---- what drivers report

    def placed(self, command: Resubmit) -> Submit:
        """What goes on is placed on the newest prefill worker that lives."""
        prefill = OTHER if OTHER in self.gateway.lives.peers else P
        numbers = (command.num_tokens, command.max_tokens)
        return Submit(command.request, *numbers, prefill, D, command.remaining_ns, command.salt, command.timer)

    def submit(self, request: str, num_tokens: int, max_tokens: int) -> None:
        """A client asks."""
        self.feed("G", Submit(RequestId(request), num_tokens, max_tokens, P, D, 60 * SECOND, self.salt))

    def grant(self, counter: int, num_tokens: int = 6, max_tokens: int = 4) -> None:
        """Submit and go on until prefill has its pages."""
        self.submit(f"r{counter}", num_tokens, max_tokens)
        self.deliver_all()

    def compute(self, counter: int) -> None:
        """Prefill computes the whole prompt in one pass and seals it."""
        number = PassId(self.prefill.last_pass + 1)
        self.feed("P", PassBegan(number, (attempt(counter),)))
        self.feed("P", PassEnded(number, finished=((attempt(counter), EndReason.STOP),)))
        handoff = self.prefill.handoffs[attempt(counter)]
        if handoff.lot is not None:
            self.feed("P", PagesSealed(attempt(counter), len(handoff.pages), tails_zeroed=True, digest="d"))

    def end_batches(self, counter: int, *, success: bool = True) -> None:
        """Every batch posted for an attempt ends, one after the other."""
        while batches := self.prefill.handoffs[attempt(counter)].batches:
            self.feed("P", BatchEnded(attempt(counter), batches[0][0], success, source_quiet=success))

    def adopt(self, counter: int, num_tokens: int = 6, max_tokens: int = 4) -> None:
        """Go from submit to the first token."""
        self.grant(counter, num_tokens, max_tokens)
        self.compute(counter)
        self.end_batches(counter)
        self.deliver_all()
        self.feed("D", Verified(attempt(counter), (), digests_match=True))
        self.tokens(counter, 0)
        self.deliver_all()

    def tokens(self, counter: int, first_index: int) -> None:
        """A token of decode reaches the gateway."""
        self.feed("G", TokensArrived(D, attempt(counter), first_index, 1))

    def decode_pass(self, *counters: int, grow: int = 0, **ended: Any) -> None:
        """Decode runs one pass."""
        number = PassId(self.decode.last_pass + 1)
        attempts = tuple(attempt(counter) for counter in counters)
        self.feed("D", PassBegan(number, attempts, tuple((a, grow) for a in attempts if grow)))
        if number in self.decode.passes:
            self.feed("D", PassEnded(number, **ended))

    def rebuild(self, session: str) -> None:
        """Decode's receiving engine is a new one."""
        self.feed("D", SessionRebuilt(SessionId(session)))


# ---- writing down ------------------------------------------------------------------------------------------------


def show(thing: Any) -> str:
    """Write an event, message or command in one short phrase."""
    if isinstance(thing, Move):
        return f"{thing.move.value} s{thing.serial}{_pages(thing.pages)}"
    if isinstance(thing, Send):
        return f"to {NAMES[thing.to]} {show(thing.message)}"
    if isinstance(thing, Received):
        return f"<- {NAMES[thing.envelope.sender]} {show(thing.envelope.message)}"
    fields = [_SHOWN.get(name, _plain)(name, getattr(thing, name)) for name in thing.__struct_fields__]
    return " ".join([type(thing).__name__, *(field for field in fields if field)])


def _pages(pages: tuple[int, ...]) -> str:
    return "[" + " ".join(map(str, pages)) + "]"


def _plain(name: str, value: Any) -> str:
    if value in (None, (), "", frozenset()):
        return ""
    if isinstance(value, EndReason):
        return value.value
    return f"{name}={_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, AttemptId):
        return f"#{value.counter}"
    if isinstance(value, EndReason):
        return value.value
    if isinstance(value, Lot):
        return f"s{value.serial}{_pages(value.pages)}"
    if isinstance(value, tuple):
        return _pages(tuple(_short(item) for item in value))  # type: ignore[arg-type]
    return NAMES.get(value, str(value)) if isinstance(value, str) else str(value)


_SHOWN: dict[str, Callable[[str, Any], str]] = {
    "attempt": lambda _, value: _short(value),
    "grant": lambda _, value: f"s{value.serial}{_pages(value.pages)}",
    "pages": lambda _, value: _pages(value),
    "layout": lambda _, value: "" if value == "L" else f"layout={value}",
    "remaining_ns": lambda _, value: "",
    "manifest": lambda _, value: (
        f"{value.num_tokens} tokens of s{value.origin_serial}{_pages(value.origin_pages)}"
        + (f" shared={_short(value.shared)}" if value.shared else "")
    ),
}
