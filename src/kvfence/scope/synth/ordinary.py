"""The bulk of a synthetic log: short and middling prompts, a piece of the time at once, whole columns at a time.

No prompt here is longer than 131,072 tokens: the long ones stand in ``sessions.py`` and ``planted.py``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.scope.synth.fleet import SLOTS, Fleet, instants
from kvfence.scope.synth.plan import Plan, milliseconds
from kvfence.scope.synth.rows import Rows, request_numbers

SHORT_MAX = 131_072
_STATUSES = np.array([200] * 968 + [429] * 14 + [400] * 8 + [499] * 6 + [500] * 2 + [503] * 2, np.int16)


class Piece:
    """Rows ``first`` to ``first + count`` of ``total``: random numbers of their own, so that pieces can be remade."""

    def __init__(self, plan: Plan, first: int, count: int, total: int) -> None:
        self.plan, self.first, self.count, self.total = plan, first, count, total
        self.rng = np.random.default_rng([plan.seed, 2, first])

    def uniform(self) -> NDArray[Any]:
        """Draw a number in [0, 1) for each row."""
        return self.rng.random(self.count, dtype=np.float32)

    def lognormal(self, median: float, sigma: float) -> NDArray[Any]:
        """Draw a heavy-tailed number for each row."""
        drawn: NDArray[Any] = median * np.exp(sigma * self.rng.standard_normal(self.count, dtype=np.float32))
        return drawn

    def choice(self, values: NDArray[Any]) -> NDArray[Any]:
        """Draw one of the values for each row."""
        drawn: NDArray[Any] = values[self.rng.integers(0, len(values), self.count, dtype=np.uint32)]
        return drawn


def ordinary(piece: Piece, fleet: Fleet) -> Rows:
    """Make the rows of a piece, in the order of their times."""
    plan, count = piece.plan, piece.count
    shares = (piece.first + np.arange(count) + piece.uniform()) / piece.total
    rows: Rows = {"time": instants(fleet, shares), "id": request_numbers(piece.first, count, plan.seed)}
    rows["account"] = fleet.account_slots[piece.rng.integers(0, SLOTS, count, dtype=np.uint16)]
    drawn = fleet.model_slots[piece.rng.integers(0, SLOTS, count, dtype=np.uint16)]
    rows["model"] = np.where(piece.uniform() < 0.7, fleet.favourite[rows["account"]], drawn)
    _leave_while_private(rows, plan)
    _placed(rows, piece, fleet)
    _measured(rows, piece)
    return rows


def _leave_while_private(rows: Rows, plan: Plan) -> None:
    """While the exposed model is private its users ask another one."""
    time = rows["time"]
    private = (time >= milliseconds(plan.private)) & (time < milliseconds(plan.public))
    rows["model"] = np.where(private & (rows["model"] == 0), 1, rows["model"]).astype(np.int32)


def _placed(rows: Rows, piece: Piece, fleet: Fleet) -> None:
    model = rows["model"]
    within = (piece.uniform() * fleet.replicas[model]).astype(np.int32)
    rows["replica"] = fleet.first_replica[model] + within
    rows["decode"] = rows["replica"] * 2 + (piece.uniform() < 0.5)


def _measured(rows: Rows, piece: Piece) -> None:
    """Lengths, status and times of each row. What was refused at the door has no lengths."""
    rates = np.array([model.prefill_rate for model in piece.plan.models])[rows["model"]]
    prompt = np.clip(piece.lognormal(1_400.0, 1.45), 8, SHORT_MAX).astype(np.int64)
    completion = np.clip(piece.lognormal(260.0, 1.0), 1, 32_768).astype(np.int64)
    status = piece.choice(_STATUSES)
    refused = status >= 400
    ttft = 60.0 + prompt / rates * 1000 + piece.lognormal(90.0, 0.7)
    rows["prompt"] = np.where(refused & (status != 499), -1, prompt)
    rows["completion"] = np.where(refused, -1, completion)
    rows["cached"] = np.where(refused, -1, (prompt * np.maximum(piece.uniform() - 0.45, 0)).astype(np.int64))
    rows["status"] = status
    rows["ttft"] = np.where(refused, np.nan, ttft)
    rows["duration"] = np.where(refused, piece.lognormal(25.0, 0.6), ttft + completion * 14.0)
    rows["request_bytes"] = prompt * 4 + 420
    rows["response_bytes"] = np.where(refused, 310, completion * 5 + 260)
    rows["agent"] = (rows["account"] % 6).astype(np.int32)
    rows["stream"] = rows["account"] % 3 != 0
