"""Who asks and what answers in a synthetic log: accounts, models, replicas, and when the days are busy."""

from datetime import timedelta
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvfence.scope.synth.plan import Plan, milliseconds, replica_name
from kvfence.scope.synth.rows import Names

SLOTS = 1 << 16
LONG_ACCOUNTS = 120
"""Accounts that send long prompts at all; they are the first ones."""

TESTERS, REPORTER, PROBER = "internal-long-context-tests", "researcher-0417", "acct-7d20c4e1"


class Fleet(Struct, frozen=True):
    """Names and tables to draw from.

    Shapes:
        account_slots, model_slots: [SLOTS], drawing a slot at random draws a name by its weight.
        first_replica, replicas: [models].
        clock: ([hours + 1] cumulative share of the traffic, [hours + 1] milliseconds).
    """

    names: Names
    account_slots: NDArray[Any]
    model_slots: NDArray[Any]
    favourite: NDArray[Any]
    first_replica: NDArray[Any]
    replicas: NDArray[Any]
    clock: tuple[NDArray[Any], NDArray[Any]]

    def account(self, name: str) -> int:
        """Give an account's place."""
        return list(self.names.accounts).index(name)


def make_fleet(plan: Plan) -> Fleet:
    """Make the names and tables of a plan."""
    rng = np.random.default_rng([plan.seed, 1])
    count = int(min(max(plan.requests // 400, 3 * LONG_ACCOUNTS), 20_000))
    numbers = rng.permutation(np.unique(rng.integers(0x10000000, 0x70000000, 2 * count)))[:count]
    accounts = [f"acct-{number:08x}" for number in numbers]
    models = plan.models
    replicas = [replica_name(model, index) for model in models for index in range(model.replicas)]
    per_model = np.array([model.replicas for model in models], np.int32)
    return Fleet(
        Names(
            accounts=[*accounts, TESTERS, REPORTER, PROBER],
            models=[model.name for model in models],
            replicas=replicas,
            decodes=[f"{name}-decode-{index}" for name in replicas for index in range(2)],
        ),
        account_slots=_slots(rng.permutation(1.0 / np.arange(3, count + 3) ** 0.9)),
        model_slots=_slots(np.array([model.share for model in models])),
        favourite=rng.choice(len(models), count, p=[model.share for model in models]).astype(np.int32),
        first_replica=np.concatenate([[0], np.cumsum(per_model)[:-1]]).astype(np.int32),
        replicas=per_model,
        clock=_clock(plan),
    )


def instants(fleet: Fleet, shares: NDArray[Any]) -> NDArray[Any]:
    """Give the moments (milliseconds) at which these shares of all traffic have passed; grows with the share."""
    return np.asarray(np.interp(shares, *fleet.clock), np.int64)


def share_of(fleet: Fleet, moment_ms: int) -> float:
    """Give the share of all traffic that has passed at a moment."""
    return float(np.interp(moment_ms, fleet.clock[1], fleet.clock[0]))


def _slots(weights: NDArray[Any]) -> NDArray[Any]:
    """Spread places over the slots by weight."""
    edges = np.cumsum(weights) / np.sum(weights)
    places: NDArray[Any] = np.searchsorted(edges, (np.arange(SLOTS) + 0.5) / SLOTS).astype(np.int32)
    return places


def _clock(plan: Plan) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make the cumulative volume by hour: afternoons are busy, nights and weekends quiet, and it grows."""
    hours = int((plan.last - plan.first) / timedelta(hours=1))
    hour = np.arange(hours)
    day = 1.0 + 0.55 * np.sin((hour % 24 - 8.5) / 24 * 2 * np.pi)
    weekend = np.where((hour // 24 + plan.first.weekday()) % 7 >= 5, 0.62, 1.0)
    volume = np.cumsum(day * weekend * (1.0 + 0.15 * hour / hours))
    times = milliseconds(plan.first) + np.arange(hours + 1, dtype=np.float64) * 3_600_000
    return np.concatenate([[0.0], volume / volume[-1]]), times
