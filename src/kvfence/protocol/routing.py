"""Which pair of workers takes a request: a pure function over what is known of them.

Rank-free: no worker is preferred for its number or age, and none is tied to another; every prefill worker reaches
every decode worker. Not for: what is known (``runtime/placement.py``).
"""

from msgspec import Struct

from kvfence.core.ids import Incarnation


class WorkerLoad(Struct, frozen=True):
    """One worker as the gateway knows it.

    Units:
        free_pages: pages neither quarantined, as last heard, nor promised to an open attempt; negative where
            attempts wait for pages. queued_tokens: of prompts that wait for this worker. num_open: attempts on it.
    """

    incarnation: Incarnation
    free_pages: int
    queued_tokens: int = 0
    num_open: int = 0
    healthy: bool = True


class Need(Struct, frozen=True):
    """Pages that one attempt takes at once on each side."""

    prefill_pages: int
    decode_pages: int


class Placement(Struct, frozen=True):
    """The prefill and decode worker of one attempt."""

    prefill: Incarnation
    decode: Incarnation


def place(prefill: tuple[WorkerLoad, ...], decode: tuple[WorkerLoad, ...], need: Need) -> Placement | None:
    """Take the pair with most room that can take the attempt now, else the shortest queues.

    Returns: None where a role has no healthy worker.
    """
    best = _best(prefill, need.prefill_pages), _best(decode, need.decode_pages)
    return None if best[0] is None or best[1] is None else Placement(best[0].incarnation, best[1].incarnation)


def _best(workers: tuple[WorkerLoad, ...], num_pages: int) -> WorkerLoad | None:
    healthy = [worker for worker in workers if worker.healthy]
    roomy = [worker for worker in healthy if worker.free_pages >= num_pages]
    if roomy:
        return min(roomy, key=lambda w: (-w.free_pages, w.queued_tokens, w.num_open, w.incarnation))
    return min(healthy, key=lambda w: (w.queued_tokens, w.num_open, -w.free_pages, w.incarnation), default=None)
