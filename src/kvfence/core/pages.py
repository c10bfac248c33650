"""The states of a page. The legal moves between them are data in ``protocol/transitions.py``."""

from enum import Enum


class PageState(Enum):
    """Who may touch a page.

    FREE: nobody. GRANTED: one writer, local or remote. SEALED: nobody writes, the stamp is final.
    ADOPTED: a running sequence reads it, nobody writes. QUARANTINED: nobody, until the writer is drained or fenced.
    """

    __hash__ = object.__hash__  # a member is one object, and tables are looked up by it at every page

    FREE = "free"
    GRANTED = "granted"
    SEALED = "sealed"
    ADOPTED = "adopted"
    QUARANTINED = "quarantined"
