"""What a synthetic log holds: models and their machines, the incident's numbers, the days.

The defaults are the post-mortem's: 155 responses in a fortnight, a prefill pool of 681,280 tokens under a context of
1,048,576, the model private from 14:00 on the last day and public again at 19:40 on a fixed release with a pool of
about twice the context.
Read next: ``ordinary.py``, ``planted.py``.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from kvfence.core.errors import SettingsError

REQUESTS_MIN = 10_000
REQUESTS_MAX = 1_000_000_000
DAY_MS = 86_400_000


class Prober(StrEnum):
    """How a planted prober asks: step by step over the limit, one length again and again, or many at once."""

    NONE = "none"
    LADDER = "ladder"
    REPEAT = "repeat"
    BURST = "burst"


class Model(Struct, frozen=True):
    """One model's deployment. share: of all requests; prefill_rate: tokens a second; single: one node, no hand-off."""

    name: str
    context: int
    pool: int
    share: float
    replicas: int
    prefill_rate: float
    single: bool = False


class Plan(Struct, frozen=True):
    """One log. first, last: its days; start, private, patched, public: the incident's moments (UTC)."""

    requests: int
    seed: int = 1
    affected: int = 155
    pool: int = 681_280
    context: int = 1_048_576
    prober: Prober = Prober.NONE
    start: datetime = datetime(2026, 8, 27, tzinfo=UTC)
    end: datetime = datetime(2026, 9, 10, tzinfo=UTC)

    @property
    def first(self) -> datetime:
        """The log begins a week before the window."""
        return self.start - timedelta(days=7)

    @property
    def last(self) -> datetime:
        """The log ends a week after the window."""
        return self.end + timedelta(days=7)

    @property
    def private(self) -> datetime:
        """The model is taken private at 14:00 on the window's last day."""
        return self.end - timedelta(hours=10)

    @property
    def patched(self) -> datetime:
        """The patched build is deployed at 19:04."""
        return self.end - timedelta(hours=4, minutes=56)

    @property
    def public(self) -> datetime:
        """The model is public again at 19:40."""
        return self.end - timedelta(hours=4, minutes=20)

    @property
    def fixed_replica_from(self) -> datetime:
        """One replica tries the fixed release from here on, with the old pool."""
        return self.end - timedelta(days=3)

    @property
    def resized_replica_from(self) -> datetime:
        """One replica on the vulnerable release gets a pool above the context from here on."""
        return self.end - timedelta(days=5)

    @property
    def large_pool(self) -> int:
        """The pool before the incident and, on one replica, within it: just above the context."""
        return self.context + 65_536

    @property
    def final_pool(self) -> int:
        """The pool of the remedy: about twice the context (2.04 million where the context is 1,048,576)."""
        return self.context * 1_992 // 1_024

    @property
    def models(self) -> tuple[Model, ...]:
        """The exposed model first; the others cannot be reached: pools above the context, or one node."""
        return (
            Model("glm-5.3", self.context, self.pool, 0.25, 8, 9_000.0),
            Model("kimi-k3", 262_144, 1_310_720, 0.20, 6, 12_000.0),
            Model("gpt-oss-120b", 131_072, 524_288, 0.35, 10, 30_000.0),
            Model("llama-4-scout", 131_072, 98_304, 0.20, 6, 40_000.0, single=True),
        )


FIXED_REPLICA = 6
"""The exposed model's replica that tries the fixed release."""

RESIZED_REPLICA = 5
"""The exposed model's replica whose pool is enlarged on the vulnerable release."""

EAST_REPLICA = 7
"""The exposed model's replica whose gateway writes times eight hours east of UTC."""

EAST_HOURS = 8
VULNERABLE_RELEASE = "0.5.18"
FIXED_RELEASE = "0.5.22"


def check(plan: Plan) -> None:
    """Refuse a plan that cannot be made.

    Raises:
        SettingsError: says each number that is out of range and what it may be.
    """
    problems = [
        text
        for wrong, text in (
            (
                not REQUESTS_MIN <= plan.requests <= REQUESTS_MAX,
                f"--requests is {plan.requests}: from {REQUESTS_MIN:,} (below that the planted rows do not fit) "
                f"to {REQUESTS_MAX:,}",
            ),
            (not 60 <= plan.affected <= 1_000, f"--affected is {plan.affected}: from 60 to 1,000"),
            (
                not 262_144 <= plan.pool <= plan.context - 65_536,
                f"--pool is {plan.pool}: from 262,144 to the context less 65,536, which is {plan.context - 65_536:,}",
            ),
            (plan.end - plan.start < timedelta(days=7), "the window is shorter than seven days"),
        )
        if wrong
    ]
    if problems:
        raise SettingsError(problems)


def replica_name(model: Model, index: int) -> str:
    """Give the name of a model's replica."""
    return f"{model.name}-r{index}"


def milliseconds(moment: datetime) -> int:
    """Give a moment as milliseconds since 1970 in UTC."""
    return int(moment.timestamp() * 1000)
