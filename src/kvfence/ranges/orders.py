"""What a practice server's worker programs are told to do wrong, beside what every worker is told.

It travels as one environment variable: worker programs take no other arguments.
"""

import os

import msgspec
from msgspec import Struct

from kvfence.ranges.catalogue import Fault

VARIABLE = "KVFENCE_RANGE_ORDERS"


class Orders(Struct, frozen=True):
    """The orders.

    ``practice``: run the practice model. Units: rate: share of occasions; prefill_rate, decode_rate: the practice
    model's tokens a second; refusal_after_s: how long a slow refusal takes; held_s: how long a batch that may become
    late is held before it lands after all.
    """

    fault: Fault = "none"
    rate: float = 1.0
    seed: int = 1
    practice: bool = True
    context_tokens: int = 2048
    prefill_rate: float = 20_000
    decode_rate: float = 500
    refusal_after_s: float = 20.0
    held_s: float = 0.5

    def as_environment(self) -> dict[str, str]:
        """Give the variable that carries them."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def read_orders() -> Orders:
    """Read this process's orders."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Orders)
