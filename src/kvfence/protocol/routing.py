"""Which pair of workers takes a request: a pure function over what is known of them."""

from msgspec import Struct

from kvfence.core.ids import Incarnation


class WorkerLoad(Struct, frozen=True):
    """One healthy worker as the gateway knows it."""

    incarnation: Incarnation
    num_open: int


class Placement(Struct, frozen=True):
    """The prefill and decode worker of one attempt."""

    prefill: Incarnation
    decode: Incarnation


def place(prefill: tuple[WorkerLoad, ...], decode: tuple[WorkerLoad, ...]) -> Placement | None:
    """Take the least busy worker of each role; None where a role has none."""
    if not prefill or not decode:
        return None
    quietest = [min(workers, key=lambda w: (w.num_open, w.incarnation)) for workers in (prefill, decode)]
    return Placement(quietest[0].incarnation, quietest[1].incarnation)
