"""What the scheduler's half of the guard and the worker's half say to each other, riding on vLLM's own step messages.

They are different processes. Orders go out with a step, reports come back with its outcome, one a rank, merged by vLLM.
"""

from msgspec import Struct, field

from kvfence.guard.vllm.manifest import Groups


class ReceiveOrder(Struct, frozen=True):
    """At decode: what will land in which blocks. ``digests``: one string a rank, as in the manifest."""

    blocks: Groups
    digests: tuple[bytes, ...]


class Orders(Struct):
    """One step's, by request.

    ``zero``: blocks, with their group, that will end a prompt: made zero before the pass that first writes to them.
    ``seal``: prompts whose last token this step computes: digest their blocks after the pass.
    ``refused``: requests that are to fail without a transfer, with their blocks. ``broken``: blocks whose tables do
    not hold, so that whoever computes on them fails.
    """

    zero: list[tuple[int, int]] = field(default_factory=list)
    seal: dict[str, Groups] = field(default_factory=dict)
    receive: dict[str, ReceiveOrder] = field(default_factory=dict)
    refused: dict[str, tuple[int, ...]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)


class Report:
    """One step's, from one rank or from all.

    ``sealed``: by request and rank, the digests. ``verified``: by request and rank, did the bytes agree?
    ``posted``: receives whose read is under way. ``undrained``: receives that failed while a write may be on its way.
    ``late``: reads after a lease had ended.
    """

    def __init__(self) -> None:
        self.sealed: dict[str, dict[int, bytes]] = {}
        self.verified: dict[str, dict[int, bool]] = {}
        self.posted: set[str] = set()
        self.undrained: set[str] = set()
        self.late = 0

    def __bool__(self) -> bool:
        return bool(self.sealed or self.verified or self.posted or self.undrained or self.late)

    def aggregate(self, other: "Report") -> "Report":
        """Add another rank's."""
        for request, ranks in other.sealed.items():
            self.sealed.setdefault(request, {}).update(ranks)
        for request, found in other.verified.items():
            self.verified.setdefault(request, {}).update(found)
        self.posted |= other.posted
        self.undrained |= other.undrained
        self.late += other.late
        return self
