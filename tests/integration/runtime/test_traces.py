"""What a running pair writes down: complete, readable, and without a word of any request."""

import re

import pytest

from kvfence.protocol.commands import Emit, Finish, Move
from kvfence.protocol.events import Submit
from kvfence.protocol.messages import EndReason
from kvfence.protocol.transitions import PageMove
from tests.integration.runtime.pairs import Pair, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKERS = (41_113, 42_227, 43_331, 44_449, 45_557)
"""Token ids that no count, page or serial of these tests comes near to."""


async def test_every_step_of_every_role_is_there(pair: Pair) -> None:
    """Grants, seals, adoptions and tokens of a request stand in the traces, in order, as the reader reads them."""
    await pair.works()
    await pair.all_free()
    moves = [c.move for step in pair.steps("decode") for c in step.commands if isinstance(c, Move)]
    assert moves[:5] == [PageMove.FENCE, PageMove.GRANT, PageMove.GRANT, PageMove.SEAL, PageMove.ADOPT]
    emits = [c for step in pair.steps("decode") for c in step.commands if isinstance(c, Emit)]
    assert len(emits) == 20
    sealed = [c for step in pair.steps("prefill") for c in step.commands if isinstance(c, Move)]
    assert [move.move for move in sealed] == [PageMove.GRANT, PageMove.SEAL, PageMove.RELEASE]
    await until("the gateway has written its trace", lambda: not pair.node().handoffs and _finishes(pair))
    gateway = pair.steps("gateway")
    assert [step.event.num_tokens for step in gateway if isinstance(step.event, Submit)] == [50]
    assert _finishes(pair) == [EndReason.LENGTH]


def _finishes(pair: Pair) -> list[EndReason]:
    return [c.reason for step in pair.steps("gateway") for c in step.commands if isinstance(c, Finish)]


async def test_no_token_of_a_prompt_or_an_answer_stands_in_a_trace_or_log(pair: Pair) -> None:
    """Distinctive token ids in a prompt, and those generated from it, are in no trace, log or heartbeat."""
    stream = pair.stream([*MARKERS, *range(30), *MARKERS], 20)
    assert await stream.finish() is EndReason.LENGTH
    refused = pair.stream([*MARKERS] * 200, 20)
    assert await refused.finish() is EndReason.DOES_NOT_FIT
    await pair.all_free()
    await until("the gateway has written its trace", lambda: EndReason.DOES_NOT_FIT in _finishes(pair))
    written = "".join(path.read_text() for path in pair.trace_folder.iterdir()) + pair.log()
    written += repr(pair.supervisor.beats()) + repr(refused.end)
    found = set(map(int, re.findall(r"\d+", written)))
    assert 50 in found  # numbers are found where they stand
    distinctive = {token for token in stream.tokens if token > 5000}
    assert len(distinctive) > 10
    assert not found & (set(MARKERS) | distinctive)
