"""What a plug-in sees of a hand-off in an engine that is not ours, and what the plug-ins of a pair say to each other.

Facts, as in ``events.py``; which decisions follow stands in ``driver/watch.py``. A plug-in sees a part of the protocol:
what it does not see (``SIGHTS``) it says in its trace's header, and of that nothing is claimed.
"""

from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation
from kvfence.protocol.events import SessionRebuilt
from kvfence.protocol.messages import Abort, Drained, Unknown

SIGHTS = ("door", "reserve", "post", "release", "pass")
"""What a plug-in may be unable to see: requests as they enter the queue; which pages are set aside; writes as they are
posted; pages going back to the engine's pool; the tables of passes."""


class Asked(Struct, frozen=True, tag=True):
    """Decode to prefill: these pages wait for this attempt; from now on they may be written."""

    attempt: AttemptId
    num_tokens: int
    num_pages: int
    layout: str


class Promised(Struct, frozen=True, tag=True):
    """Prefill to decode: what was sent. ``digest``: over the bytes of all pages, in order."""

    attempt: AttemptId
    num_tokens: int
    num_pages: int
    layout: str
    digest: str


class Declined(Struct, frozen=True, tag=True):
    """Prefill to decode: nothing of this attempt was sent, and nothing will be."""

    attempt: AttemptId


Word = Asked | Promised | Declined | Abort | Drained | Unknown


class Said(Struct, frozen=True, tag=True):
    """This plug-in said it. ``to``: empty where it travels with the request."""

    word: Word
    to: Incarnation = Incarnation("")


class Heard(Struct, frozen=True, tag=True):
    """The other plug-in said it, and the shared key vouches for that."""

    sender: Incarnation
    word: Word


class AtDoor(Struct, frozen=True, tag=True):
    """A request is about to enter the engine's queue. ``refused``: the engine has refused it already."""

    refused: bool
    attempt: AttemptId | None = None


class Reserved(Struct, frozen=True, tag=True):
    """Decode's engine set pages aside that another process is to fill; ``num_tokens``: of the prompt they are for."""

    attempt: AttemptId
    num_tokens: int
    pages: tuple[int, ...]


class Posted(Struct, frozen=True, tag=True):
    """Prefill's engine is about to send pages. ``attempt``: None where no decode has asked for them."""

    attempt: AttemptId | None
    num_pages: int


class Compared(Struct, frozen=True, tag=True):
    """Decode holds what was promised against what it set aside, and the bytes that came against the promise.

    ``num_tokens``, ``num_pages``: as decode has them. ``digest``: of the bytes that came; None: not looked at (yet).
    ``doubts``: guards that fail by what only the engine knows (a lease that was lost, another prompt's digest).
    """

    attempt: AttemptId
    num_tokens: int
    num_pages: int
    promise: Promised | None
    digest: str | None = None
    doubts: tuple[str, ...] = ()


class Used(Struct, frozen=True, tag=True):
    """The engine goes on with the pages: the sequence may run, caches may learn of them."""

    attempt: AttemptId


class Checked(Struct, frozen=True, tag=True):
    """So many page tables of passes, with so many pages, were as they should be since this was last said."""

    num_tables: int
    num_pages: int


class Misread(Struct, frozen=True, tag=True):
    """A pass read pages for this attempt that are not its own any more."""

    attempt: AttemptId
    pages: tuple[int, ...]


class Returning(Struct, frozen=True, tag=True):
    """The engine wants to put this attempt's pages back into its pool; where that is refused they are held."""

    attempt: AttemptId


Watched = Said | Heard | AtDoor | Reserved | Posted | Compared | Used | Checked | Misread | Returning | SessionRebuilt
