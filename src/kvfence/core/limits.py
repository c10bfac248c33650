"""A bound on everything, with the sum it gives; part of the settings (``settings.py``), seldom set."""

from typing import Annotated

from msgspec import Meta, Struct


class Limits(Struct, frozen=True):
    """Bounds of one deployment.

    At most one transfer batch of an attempt is outstanding, so at most ``batch_pages_max`` pages of an attempt can be
    written after it is given up. A node's state is O(``attempts_open_max``).
    """

    batch_pages_max: Annotated[int, Meta(description="pages in one transfer batch", ge=1)] = 64
    attempts_open_max: Annotated[int, Meta(description="attempts open at one gateway", ge=1)] = 256
    queue_tenant_max: Annotated[
        int, Meta(description="open attempts of one tenant, unsettled cancelled ones included", ge=1)
    ] = 128
    tenant_requests_max: Annotated[
        int,
        Meta(description="answers one tenant may wait for at one time; 0: no bound but limits.queue_tenant_max", ge=0),
    ] = 0
    tenant_tokens_per_minute: Annotated[
        int, Meta(description="tokens of prompts and answers of one tenant; 0: no bound", ge=0)
    ] = 0
    offers_waiting_max: Annotated[
        int, Meta(description="offers a decode worker holds before it has pages for them", ge=1)
    ] = 256
    chunk_tokens_max: Annotated[int, Meta(description="new prompt tokens in one prefill pass", ge=1)] = 512
    pass_sequences_max: Annotated[int, Meta(description="sequences in one decode pass", ge=1)] = 64
    cached_lots_max: Annotated[
        int,
        Meta(
            description="prompts whose pages prefill keeps for others that begin alike, while nobody holds them", ge=1
        ),
    ] = 1024
    trace_bytes_max: Annotated[
        int, Meta(description="bytes of one trace file; its predecessor is kept, so twice this on disk", ge=1)
    ] = 256 << 20
