"""For every guard the smallest world in which its fault can do its harm; hazards; and the field's known mistakes.

What each guard is for stands in ``protocol/guards.py``. ``matrix.py`` runs these.
"""

from msgspec import Struct
from msgspec.structs import replace

from kvfence.protocol.guards import Rules
from kvfence.prove.bounds import Asked, Bounds

LEAK = ("reads-own-bytes",)
STRAY = ("no-stray-write",)
TOLD = ("refusal-arrives",)

BASE = Bounds()
TIGHT = replace(BASE, capacity=replace(BASE.capacity, prefill_pages=1, decode_pages=2))
ONE = replace(TIGHT, requests=(Asked(),))
SHORT = (Asked(max_tokens=1), Asked(max_tokens=1, tenant=1))
REUSED = replace(BASE, requests=SHORT, capacity=replace(BASE.capacity, prefill_pages=1, decode_pages=3))
"""Two that end with their first token; prefill's one page goes from one to the other."""

ROOMY = replace(BASE, capacity=replace(BASE.capacity, prefill_pages=2))

PLACEHOLDER = replace(
    BASE,
    requests=(Asked(num_tokens=4, tenant=1),),
    capacity=replace(BASE.capacity, prefill_pages=1, context_tokens=8),
    setups=frozenset({"placeholder"}),
)
"""The incident's mistake: a prompt of two pages, a prefill pool of one, an engine that keeps the refusal for later."""

SHY = replace(PLACEHOLDER, capacity=replace(PLACEHOLDER.capacity, prefill_pages=2), engine_pages=1)
"""The engine takes less of a prompt than its pool holds, and says so only by a placeholder."""

FAMILY = replace(
    BASE,
    requests=(Asked(num_tokens=3, family=1), Asked(num_tokens=3, family=1, tenant=1)),
    capacity=replace(BASE.capacity, prefill_pages=3, decode_pages=6, context_tokens=6),
    cached_lots_max=2,
    batch_pages_max=2,
)
ALIKE = replace(FAMILY, requests=(Asked(num_tokens=3, max_tokens=1, family=1),))
"""One whose pages would be found by the next of its tenant."""


def _with(bounds: Bounds, *faults: str, setups: tuple[str, ...] = ()) -> Bounds:
    return replace(bounds, faults=frozenset(faults), faults_max=len(faults), setups=bounds.setups | frozenset(setups))


class Case(Struct, frozen=True):
    """One guard's fault in its smallest world. ``by_itself``: where its removal shows with every other guard on."""

    bounds: Bounds
    harm: tuple[str, ...]
    by_itself: "Case | None" = None


CASES: dict[str, Case] = {
    "fits": Case(replace(PLACEHOLDER, setups=frozenset()), TOLD),
    "refusal-is-final": Case(PLACEHOLDER, LEAK, Case(SHY, TOLD)),
    "count-matches": Case(PLACEHOLDER, LEAK),
    "stamp-at-adopt": Case(PLACEHOLDER, LEAK),
    "attempt-is-current": Case(_with(ROOMY, "confuse"), LEAK, Case(_with(ONE, "duplicate"), ("delivered-in-order",))),
    "peer-is-current": Case(_with(ONE, "restart-prefill", "duplicate"), (*STRAY, "all-answered", "event-refused")),
    "stamp-at-read": Case(_with(ROOMY, "misdirect"), LEAK),
    "digest-matches": Case(_with(ONE, "corrupt"), LEAK),
    "layout-agrees": Case(_with(ONE, setups=("drift",)), LEAK),
    "quarantine-on-revoke": Case(_with(ONE, "deadline"), STRAY),
    "quarantine-on-mismatch": Case(_with(ONE, "hasty"), STRAY),
    "drain-or-fence": Case(_with(ONE, "cancel", "deadline"), STRAY),
    "hold-source": Case(_with(REUSED, "deadline"), ("source-held",)),
    "pass-ended": Case(_with(ONE, "deadline"), STRAY),
    "tombstone": Case(_with(ONE, "duplicate", "deadline"), STRAY),
    "fence-on-start": Case(_with(ONE, setups=("former-writes",)), STRAY),
    "batch-bound": Case(
        replace(ONE, requests=(Asked(num_tokens=4),), capacity=replace(BASE.capacity, context_tokens=8)),
        ("batches-bounded",),
    ),
    "settle-before-cancel": Case(_with(ONE, "cancel"), ("no-cut-transfer",)),
    "zero-tail": Case(
        replace(_with(TIGHT, setups=("unzeroed",)), requests=(Asked(), Asked(num_tokens=1, tenant=1))),
        ("sends-own-bytes",),
    ),
    "tenant-salt": Case(_with(FAMILY, setups=("unsalted",)), LEAK),
    "verified-before-shared": Case(_with(ALIKE, "deadline", setups=("shared-early",)), ("cached-is-verified",)),
}


class Hazard(Struct, frozen=True):
    """One danger, and the guards of which some set must stand against it."""

    name: str
    case: Case
    guards: tuple[str, ...]


INCIDENT_GUARDS = (
    "fits@gateway",
    "refusal-is-final",
    "count-matches",
    "stamp-at-adopt",
    "stamp-at-read",
    "digest-matches",
)

HAZARDS = (
    Hazard("a refused prompt sent as a placeholder", Case(PLACEHOLDER, LEAK), INCIDENT_GUARDS),
    Hazard(
        "a completion taken for another attempt's",
        Case(_with(ROOMY, "confuse"), LEAK),
        ("attempt-is-current", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
    ),
    Hazard(
        "a batch called done before it has landed",
        Case(_with(ONE, "hasty"), LEAK),
        ("stamp-at-adopt", "stamp-at-read", "digest-matches"),
    ),
    Hazard("a corrupt write", Case(_with(ONE, "corrupt"), LEAK), ("digest-matches", "stamp-at-adopt")),
    Hazard("a misdirected write", Case(_with(ROOMY, "misdirect"), LEAK), ("stamp-at-read", "digest-matches")),
)


class Mistake(Struct, frozen=True):
    """One known mistake of the field. ``without``: the guards whose absence is this mistake; ``case``: where it shows.

    ``inexpressible``: why no world here can make it, instead; ``elsewhere``: what would have to cover it.
    """

    id: str
    error: str
    source: str
    answers: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    case: Case | None = None
    inexpressible: str = ""
    elsewhere: str = ""


IN_SGLANG = "tests/unit/guard/sglang/test_wiring.py::test_no_rank_gives_back_what_another_still_holds"
IN_VLLM = "tests/unit/guard/vllm/test_facts.py::test_a_hybrid_model_needs_a_release_that_fails_receives_whole"

MISTAKES = (
    Mistake(
        "M1",
        "a rejected request swapped for a stub and still handed off",
        "sgl-project/sglang#30233, #35421",
        ("refusal-is-final", "count-matches", "stamp-at-adopt", "digest-matches", "fits"),
        INCIDENT_GUARDS,
        CASES["refusal-is-final"],
    ),
    Mistake(
        "M2",
        "destination pages freed on abort with a writer in flight",
        "sgl-project/sglang#24527, #32564; vllm-project/vllm#32255",
        ("quarantine-on-revoke",),
        ("quarantine-on-revoke",),
        CASES["quarantine-on-revoke"],
    ),
    Mistake(
        "M3",
        "the target of an acknowledgement dropped before the drain ends",
        "sgl-project/sglang#38961 (1)",
        inexpressible="an acknowledgement that never comes is the fault loss; every message is said again until it is "
        "answered, and pages return in every world that loses one",
        elsewhere="the fault loss, exhausted with every guard",
    ),
    Mistake(
        "M4",
        "one acknowledgement target for several decode ranks",
        "sgl-project/sglang#38961 (2)",
        inexpressible="an attempt has one decode rank here; nobody fans out",
        elsewhere=IN_SGLANG,
    ),
    Mistake(
        "M5",
        "an abort for a cleared room with a chunk outstanding is never acknowledged",
        "sgl-project/sglang#38961 (3)",
        ("drain-or-fence", "hold-source"),
        inexpressible="prefill forgets no attempt whose batch is outstanding: what it does wrong without its guards is "
        "to answer too early, which drain-or-fence shows; never answering is the fault loss",
        elsewhere="the fault loss, exhausted with every guard",
    ),
    Mistake(
        "M6",
        "failures that decode did not begin release at once",
        "sgl-project/sglang#38961 (4)",
        ("quarantine-on-revoke",),
        ("quarantine-on-revoke",),
        Case(_with(ONE, "stall"), STRAY),
    ),
    Mistake(
        "M7",
        "source pages re-used under a reader",
        "sgl-project/sglang#31357; NVIDIA/TensorRT-LLM#12540, #12542; kvcache-ai/Mooncake#850",
        ("hold-source",),
        ("hold-source",),
        CASES["hold-source"],
    ),
    Mistake(
        "M8",
        "release on time-out without proof of quiet",
        "SGLang 0.5.23, disaggregation/decode.py",
        ("drain-or-fence",),
        ("drain-or-fence",),
        CASES["drain-or-fence"],
    ),
    Mistake(
        "M9",
        "the index of a metadata slot re-used",
        "sgl-project/sglang#22716",
        ("attempt-is-current", "stamp-at-adopt", "digest-matches"),
        ("attempt-is-current", "count-matches", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
        CASES["attempt-is-current"],
    ),
    Mistake(
        "M10",
        "a reference to blocks without a generation",
        "vllm-project/vllm#52234",
        ("attempt-is-current", "stamp-at-adopt"),
        ("attempt-is-current", "count-matches", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
        CASES["attempt-is-current"],
    ),
    Mistake(
        "M11",
        "a compute step in flight still writes freed pages",
        "vllm-project/vllm#45357; vllm-project/vllm-ascend#14055",
        ("pass-ended",),
        ("pass-ended",),
        CASES["pass-ended"],
    ),
    Mistake(
        "M12",
        "a completion counted, not proven",
        "vllm-project/vllm#50754; sgl-project/sglang#36033; ROCm/ATOM#812",
        ("stamp-at-adopt", "digest-matches"),
        ("stamp-at-adopt", "stamp-at-read", "digest-matches"),
        Case(_with(ONE, "hasty"), LEAK),
    ),
    Mistake(
        "M13",
        "success admitted to the prefix tree without write coverage",
        "NVIDIA/TensorRT-LLM#19545",
        ("verified-before-shared",),
        ("verified-before-shared",),
        CASES["verified-before-shared"],
    ),
    Mistake(
        "M14",
        "a completion filtered, or sent under the wrong id",
        "vllm-project/vllm-ascend#16662; vllm-project/vllm#36958; InternLM/lmdeploy#4967",
        ("attempt-is-current",),
        ("attempt-is-current", "count-matches", "stamp-at-adopt", "stamp-at-read", "digest-matches"),
        CASES["attempt-is-current"],
    ),
    Mistake(
        "M15",
        "a failure applied to one KV group of several",
        "vllm-project/vllm#52234",
        inexpressible="a page here holds all layers: there is one group, and a failure is of the whole hand-off",
        elsewhere=IN_VLLM,
    ),
)


def without(case: Case, *guards: str) -> Bounds:
    """Give a case's world with these guards away."""
    return replace(case.bounds, rules=Rules.without(*guards)) if guards else case.bounds
