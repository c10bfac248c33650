"""The configurations that judges look at: small ones in which everything the mirror has happens, guards on and away."""

from kvfence.prove.judges.core import Config

CONFIGS = (
    Config("one attempt", (1,), 3, 1),
    Config("cancelled at any time", (2,), 4, 2, cancels=1),
    Config("given up, cancelled, repeated", (2,), 4, 2, cancels=1, stalls=1, duplicates=1),
    Config("one batch of two pages, broken", (2,), 4, 2, batch=2, cancels=1, corrupts=1),
    Config("two attempts, one source page", (1, 1), 3, 1, cancels=1),
    Config("two attempts, a batch given up", (1, 1), 4, 2, stalls=1),
    Config("prefill dies", (1, 1), 4, 2, cancels=1, deaths=1),
    Config("a prompt that does not fit", (2, 1), 4, 1, cancels=1),
    Config("revoked and not quarantined", (1, 1), 3, 1, cancels=1, absent=("quarantine-on-revoke",)),
    Config(
        "drained by assumption", (1, 1), 3, 1, cancels=1, stalls=1,
        absent=("drain-or-fence@decode", "drain-or-fence@prefill"),
    ),
    Config(
        "no stamps, no digest", (2,), 4, 2, batch=2, corrupts=1,
        absent=("stamp-at-adopt", "stamp-at-read@decode", "digest-matches"),
    ),
    Config("source not held, no tombstone", (1, 1), 3, 1, cancels=1, absent=("hold-source", "tombstone@prefill")),
)  # fmt: skip
"""Twelve; TLC takes one to twenty seconds for each."""
