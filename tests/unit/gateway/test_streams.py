import asyncio
import io

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.gateway.answers import ChatShape, Naming
from kvfence.gateway.logs import RequestRecord, open_log
from kvfence.gateway.metrics import GatewayMetrics
from kvfence.gateway.sessions import Choice, Reading, Session, TokenClock
from kvfence.gateway.streams import Delivery, GenerationResponse
from tests.unit.gateway.fakes import ByteStream, FakeGenerations, say

SCOPE = {"type": "http"}


def respond(generations: FakeGenerations, record: RequestRecord, send_timeout_s: float) -> GenerationResponse:
    """Make a streamed response that gives up after so long."""
    request = Request(RequestId("r"), TenantId("t"), (1,), 100, SamplingParams())
    clock = TokenClock(GatewayMetrics(), 0.0)
    choices = [Choice(0, request, Reading(ByteStream))]
    session = Session(choices, generations.generate_together([request]), clock, generations.leave)
    delivery = Delivery(ChatShape(Naming("r", "toy", 0)), True, False, 16, send_timeout_s)
    return GenerationResponse(session, delivery, record, open_log("json", io.StringIO()))


async def stay() -> dict:
    """A client that neither sends nor leaves."""
    await asyncio.Event().wait()
    return {}


async def test_a_client_that_takes_nothing_is_given_up():
    """A send that is not taken in time ends the response and cancels the generation."""
    sent = []

    async def stall_after_three(message):
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()

    generations, record = FakeGenerations(say("Paris")), RequestRecord("r", "/", 0.0)
    await asyncio.wait_for(respond(generations, record, 0.05)(SCOPE, stay, stall_after_three), 5)
    assert record.reason == "client_stalled"
    assert (generations.num_open, generations.num_cancelled) == (0, 1)
    assert record.num_answer == 2


async def test_a_client_that_takes_all_hears_all():
    """Within the same bound, a client that takes what is sent gets the whole answer."""
    sent = []

    async def take(message):
        sent.append(message)

    generations, record = FakeGenerations(say("Paris")), RequestRecord("r", "/", 0.0)
    await asyncio.wait_for(respond(generations, record, 0.05)(SCOPE, stay, take), 5)
    assert record.reason == "ok"
    assert sent[-2]["body"] == b"data: [DONE]\n\n"
    assert not sent[-1]["more_body"]
