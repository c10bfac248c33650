"""Values that hold token ids name only their kind, wherever they may be printed."""

import pytest
from msgspec import Struct

from kvfence.core.ids import AttemptId, Incarnation, RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.models.executor import PassRow
from kvfence.runtime.decode_worker import Sequence
from kvfence.runtime.generation import TokensOut
from kvfence.runtime.prefill_worker import Job
from kvfence.wire.frames import FirstToken, Frame, Prompt, TokenRow, Tokens

MARK = 739_184
ATTEMPT = AttemptId(Incarnation("a" * 32), 1)
SAMPLING = SamplingParams()


@pytest.mark.parametrize(
    "value",
    [
        Request(RequestId("r"), TenantId("t"), (MARK,), 1, SAMPLING, stop=(str(MARK),)),
        PassRow([MARK], 0, [0]),
        TokensOut((MARK,)),
        Job([MARK], SAMPLING, 0),
        Sequence(MARK, SAMPLING, 0, 1, 1, [0]),
        Prompt([MARK], SAMPLING, 0),
        FirstToken(MARK, SAMPLING, 0),
        TokenRow(ATTEMPT, 0, [MARK]),
        Frame(Incarnation("b" * 32), None, Tokens([TokenRow(ATTEMPT, 0, [MARK])])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_token_is_in_a_repr(value: Struct) -> None:
    """A traceback or a log line that shows the value shows none of its tokens."""
    assert str(MARK) not in repr(value)
