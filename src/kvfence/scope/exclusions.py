"""``--exclude FILE``: own tests and reporters, whose answers are counted and shown apart.

::

    account:acct-canary        # every request of an account
    request:acme/chatcmpl-123  # one request of one account
    request:chatcmpl-123       # the same, if no other account has this id: else nothing, and that is said
    acct-of-the-reporter       # an account or a request
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kvfence.core.errors import EvidenceError

ENTRIES_MAX = 1_000_000


class Exclusions(Struct, frozen=True):
    """The accounts and requests that are excluded; an entry of neither kind stands in both."""

    accounts: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()


def load_exclusions(paths: Sequence[Path]) -> Exclusions:
    """Read the files.

    Raises:
        EvidenceError: a file cannot be read, or has too many entries.
    """
    accounts: dict[str, None] = {}
    requests: dict[str, None] = {}
    for path in paths:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            raise EvidenceError(f"--exclude {path}: {error.strerror}") from error
        for line in text.splitlines():
            entry = line.partition(" #")[0].strip()
            if not entry or entry.startswith("#"):
                continue
            kind, sign, name = entry.partition(":")
            if sign and kind == "account":
                accounts[name.strip()] = None
            elif sign and kind == "request":
                requests[name.strip()] = None
            else:
                accounts[entry] = None
                requests[entry] = None
    if len(accounts) + len(requests) > ENTRIES_MAX:
        raise EvidenceError(f"--exclude: more than {ENTRIES_MAX:,} entries")
    return Exclusions(tuple(accounts), tuple(requests))
