"""Engines as shipped, as sets of guards that are there or not, each with where that was seen.

*ran*: the engine was run and did this. *read*: its released source says so. A set is as good as its sources: what an
engine does elsewhere than at a hand-off is not in it.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvfence.protocol.guards import Rules
from kvfence.prove.bounds import Bounds
from kvfence.prove.cases import BASE, ONE, PLACEHOLDER

How = Literal["ran", "read"]


class Fact(Struct, frozen=True):
    """One guard, there or not. ``source``: a file of the engine's release, or an issue of its repository."""

    guard: str
    present: bool
    source: str
    how: How


class Finding(Struct, frozen=True):
    """What a search of this engine's set should come upon."""

    name: str
    bounds: Bounds
    property: str


class Engine(Struct, frozen=True):
    """One release. ``facts``: guard by guard; what is not named is taken as present, in the engine's favour."""

    name: str
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> Rules:
        """The guards that this release has."""
        return Rules.without(*(fact.guard for fact in self.facts if not fact.present))


_NO_STAMP = "no stamp lies in a page: --kv-canary is off by default and its pools are not a default model's"
_SGLANG_COMMON = (
    Fact("fits@gateway", False, "the router knows no pool (sgl-project/sglang#30233)", "ran"),
    Fact("count-matches", False, "disaggregation/decode.py _commit_transfer_to_req compares the room alone", "read"),
    Fact("stamp-at-adopt", False, _NO_STAMP, "read"),
    Fact("stamp-at-read", False, _NO_STAMP, "read"),
    Fact("digest-matches", False, "--disaggregation-enable-kv-checksum: off, and none before 0.5.21", "read"),
)
_NO_DEFER = Fact(
    "quarantine-on-revoke",
    False,
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE is off (environ.py; sgl-project/sglang#24527, #35049)",
    "read",
)
_TIMED = Fact(
    "drain-or-fence",
    False,
    "disaggregation/decode.py resolve_deferred_releases: timed out without a full drain ack; releasing anyway",
    "ran",
)
_UNBOUNDED = Fact(
    "batch-bound", False, "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES defaults to 0 (mooncake/conn.py)", "read"
)
_HUNG = Fact(
    "refusal-is-final",
    True,
    "disaggregation/prefill.py retires it; CommonKVSender.abort() (common/conn.py) is local: decode is not told",
    "ran",
)


def _faulty(*faults: str) -> Bounds:
    return replace(ONE, faults=frozenset(faults), faults_max=len(faults))


INCIDENT = Finding("a refused prompt is answered from pages nobody wrote", PLACEHOLDER, "reads-own-bytes")
LATE = Finding("pages freed on abort are written by a late write", _faulty("deadline"), "no-stray-write")
RELEASED = Finding("pages are released by time-out, and written late", _faulty("cancel", "deadline"), "no-stray-write")
HUNG = Finding(
    "decode is not told of a refusal: it holds its pages until its own time-out, and the client hears no reason",
    replace(PLACEHOLDER, setups=frozenset({"silent-refusal"})),
    "refusal-arrives",
)
STALE = Finding(
    "a reference to blocks that were re-used is read as another request's",
    replace(BASE, faults=frozenset({"confuse"}), faults_max=1, capacity=replace(BASE.capacity, prefill_pages=2)),
    "reads-own-bytes",
)
POISONED = Finding(
    "pages that hold another's bytes are adopted, and from then on pass for verified",
    replace(BASE, faults=frozenset({"confuse"}), faults_max=1, capacity=replace(BASE.capacity, prefill_pages=2)),
    "adopted-is-verified",
)
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "sglang-0.5.19",
            (
                *_SGLANG_COMMON,
                Fact(
                    "refusal-is-final",
                    False,
                    "managers/schedule_batch.py set_finish_with_abort; finished() is still False",
                    "ran",
                ),
                _NO_DEFER,
                _UNBOUNDED,
            ),
            (INCIDENT, LATE),
        ),
        Engine("sglang-0.5.20", (*_SGLANG_COMMON, _HUNG, _NO_DEFER, _UNBOUNDED), (HUNG, LATE)),
        Engine("sglang-0.5.21", (*_SGLANG_COMMON, _HUNG, _TIMED, _UNBOUNDED), (HUNG, RELEASED)),
        Engine("sglang-0.5.23", (*_SGLANG_COMMON, _HUNG, _TIMED, _UNBOUNDED), (HUNG, RELEASED)),
        Engine(
            "vllm-0.32-nixl",
            (
                Fact("count-matches", False, "nixl/pull_scheduler.py takes its own prompt's length", "ran"),
                Fact(
                    "attempt-is-current@decode", False, "vllm-project/vllm#52234: references have no generation", "ran"
                ),
                Fact("stamp-at-adopt", False, "no stamp lies in a block (vllm-project/vllm#52234)", "read"),
                Fact("stamp-at-read", False, "no stamp lies in a block (vllm-project/vllm#52234)", "read"),
                Fact("digest-matches", False, "vLLM has no checksum of a transfer", "read"),
                Fact("refusal-is-final", True, "an over-long prompt is refused with 400 at the API", "ran"),
                Fact("verified-before-shared", False, "v1/core/sched/scheduler.py: cache_blocks, always", "ran"),
            ),
            (STALE, POISONED),
        ),
    )
}
