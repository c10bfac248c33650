"""What a client asked for, once it is token ids."""

from msgspec import Struct

from kvfence.core.ids import RequestId, TenantId


def without_content(value: object) -> str:
    """Give a repr that names the kind alone: for values that hold token ids, wherever they may be printed."""
    return f"{type(value).__name__}(...)"


class SamplingParams(Struct, frozen=True):
    """How the next token is chosen.

    Units:
        temperature: 0 is greedy. top_p: 0 < top_p <= 1. top_k: 0 is off.
        seed: the token at index i depends on (seed, i) alone; the gateway draws one where the client gave none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False


class Request(Struct, frozen=True):
    """One generation asked for by one tenant. ``token_ids`` never reach a log, metric, trace or error.

    Units:
        deadline_s: seconds from its arrival to its last token.
    """

    id: RequestId
    tenant: TenantId
    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    deadline_s: float = 600.0

    __repr__ = without_content
