"""What the ranks of one worker say of the same hand-offs becomes one answer, before any of them acts on it.

Each rank digests its own part of every page. A rank that dropped pages while another adopted them would wait for it for
ever in the next collective; so a hand-off holds where it holds on every rank.
"""

import hashlib
from collections.abc import Callable, Sequence

from kvfence.core.invariant import require

Minimum = Callable[[Sequence[int]], Sequence[int]]
"""A collective: the smallest value of all ranks, place by place. Every rank calls it, with as many values."""


def agree(judged: Sequence[tuple[str, bool]], minimum: Minimum) -> tuple[bool, ...]:
    """Give for each hand-off whether it holds on every rank, in the order given.

    ``judged``: names of hand-offs, alike on all ranks, and what this rank found. Where ranks do not name the same in
    the same order, nothing holds: no rank knows what the others speak of.
    Raises:
        whatever ``minimum`` does: then nothing is known, and nothing may be adopted.
    """
    told = _number("\0".join(name for name, _ in judged))
    about = [len(judged), -len(judged), told, -told]
    if list(minimum(about)) != about:
        return tuple(False for _ in judged)
    if not judged:
        return ()
    found = minimum([int(holds) for _, holds in judged])
    require(len(found) == len(judged), "a collective gives as many values as it is given")
    return tuple(value == 1 for value in found)


def _number(text: str) -> int:
    """Give a number that no other text is likely to have, and that any collective's 64 bits hold."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
