"""A bound on everything, with the sum it gives; part of the settings (``settings.py``), seldom set."""

from typing import Annotated

from msgspec import Meta, Struct

_Bound = Annotated[int, Meta(ge=1)]
_BoundOrNone = Annotated[int, Meta(ge=0)]


class Limits(Struct, frozen=True):
    """Bounds of one deployment.

    Units:
        batch_pages_max: pages in one transfer batch; at most one batch of an attempt is outstanding,
            so at most this many pages of an attempt can be written after it is given up.
        attempts_open_max: attempts open at one gateway; a node's state is O(this).
        queue_tenant_max: open attempts of one tenant, unsettled cancelled ones included.
        tenant_requests_max: answers one tenant may wait for at one time; 0: no bound but the one above.
        tenant_tokens_per_minute: tokens of prompts and answers of one tenant; 0: no bound.
        offers_waiting_max: offers a decode worker holds before it has pages for them.
        chunk_tokens_max: new prompt tokens in one prefill pass.
        pass_sequences_max: sequences in one decode pass.
        cached_lots_max: prompts whose pages prefill keeps for others that begin alike, while nobody holds them.
        trace_bytes_max: size of one trace file; one rotated predecessor is kept, so twice this on disk.
    """

    batch_pages_max: _Bound = 64
    attempts_open_max: _Bound = 256
    queue_tenant_max: _Bound = 128
    tenant_requests_max: _BoundOrNone = 0
    tenant_tokens_per_minute: _BoundOrNone = 0
    offers_waiting_max: _Bound = 256
    chunk_tokens_max: _Bound = 512
    pass_sequences_max: _Bound = 64
    cached_lots_max: _Bound = 1024
    trace_bytes_max: _Bound = 256 << 20
