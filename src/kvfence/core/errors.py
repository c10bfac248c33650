"""Every error kvfence raises, as one tree.

::

    KvfenceError
    +- SettingsError            a setting is wrong or unknown; says which and what to write instead
    +- OwnershipError           a page is not whose we thought
    |  +- StaleTag              the tag names an earlier use of the page
    |  +- StampMismatch         the bytes were written under another tag
    +- IntegrityError           what arrived is not what was promised
    |  +- LayoutMismatch
    +- ProtocolError
    |  +- LocalProtocolError    an event that is illegal for us: a bug here; nothing changed
    |  +- RemoteProtocolError   a message that is illegal from a peer: answered and counted
    +- TransportError           a one-sided write or control message failed; ``in_flight`` says what may still land
    +- CapacityError            something does not fit; carries the numbers
    +- ModelError               a model cannot be fetched, read or served; says which and why
    +- WorkerError              a worker process died or did not start; carries its role and exit status
    +- EvidenceError            a source of evidence cannot be read, or is not what it was said to be
    +- TraceError               a trace is truncated, edited or of another schema

``InvariantBroken`` (``invariant.py``) is outside the tree on purpose: nothing may catch it as an error.
A refusal is a value (``protocol/admission.py``), never an exception. No error carries prompt text,
output text, token ids or keys.
"""

from typing import Literal

InFlight = Literal["yes", "no", "unknown"]


class KvfenceError(Exception):
    """Root of all errors; the message says what to do."""


class SettingsError(KvfenceError):
    """One or more settings are wrong; ``problems`` lists all of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class OwnershipError(KvfenceError):
    """A page is not whose the caller thought."""


class StaleTag(OwnershipError):
    """The tag names an earlier use of the page."""


class StampMismatch(OwnershipError):
    """The bytes in a page were written under another tag than expected."""


class IntegrityError(KvfenceError):
    """What arrived is not what was promised."""


class LayoutMismatch(IntegrityError):
    """Two workers lay out KV bytes differently."""


class ProtocolError(KvfenceError):
    """A protocol rule was broken."""


class LocalProtocolError(ProtocolError):
    """Our own driver fed an illegal event; the node is unchanged. A bug here, never the peer's fault."""


class RemoteProtocolError(ProtocolError):
    """A peer sent a message that cannot be read or is illegal now."""


class TransportError(KvfenceError):
    """A transfer failed. ``in_flight``: may bytes of it still land? ``unknown`` means quarantine."""

    def __init__(self, message: str, in_flight: InFlight) -> None:
        super().__init__(message)
        self.in_flight = in_flight


class CapacityError(KvfenceError):
    """Something does not fit; the message carries the arithmetic and the flag that mends it."""


class ModelError(KvfenceError):
    """A model cannot be fetched, read or served."""


class WorkerError(KvfenceError):
    """A worker process died or never became ready."""

    def __init__(self, role: str, message: str, exit_status: int | None = None) -> None:
        super().__init__(f"{role} worker: {message}")
        self.role = role
        self.exit_status = exit_status


class EvidenceError(KvfenceError):
    """A source of evidence cannot be read; the message names it and says what to do."""


class TraceError(KvfenceError):
    """A trace cannot be read as what it claims to be."""
