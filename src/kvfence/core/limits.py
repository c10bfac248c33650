"""A bound on everything, with the sum it gives. Not for: what a user sets (``settings.py``)."""

from msgspec import Struct


class Limits(Struct, frozen=True):
    """Bounds of one deployment.

    Units:
        batch_pages_max: pages in one transfer batch; at most one batch of an attempt is outstanding,
            so at most this many pages of an attempt can be written after it is given up.
        attempts_open_max: attempts open at one gateway; a node's state is O(this).
        queue_tenant_max: open attempts of one tenant, unsettled cancelled ones included.
        offers_waiting_max: offers a decode worker holds before it has pages for them.
        chunk_tokens_max: new prompt tokens in one prefill pass.
        pass_sequences_max: sequences in one decode pass.
        trace_bytes_max: size of one trace file; one rotated predecessor is kept, so twice this on disk.
    """

    batch_pages_max: int = 64
    attempts_open_max: int = 256
    queue_tenant_max: int = 128
    offers_waiting_max: int = 256
    chunk_tokens_max: int = 512
    pass_sequences_max: int = 64
    trace_bytes_max: int = 256 << 20
