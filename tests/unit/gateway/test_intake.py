import asyncio

from starlette.requests import Request

from kvfence.gateway.intake import LARGE_AT_ONCE, LARGE_BYTES, Intake
from kvfence.gateway.responses import Failure


def request(inbox: asyncio.Queue, **headers: str) -> Request:
    """A request whose messages come out of a queue."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, inbox.get)


def part(body: bytes, more: bool) -> dict:
    """One message of a body."""
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_comes_in_parts():
    """Parts are joined."""
    inbox: asyncio.Queue = asyncio.Queue()
    for message in (part(b"ab", True), part(b"c", False)):
        inbox.put_nowait(message)
    async with Intake(10).body(request(inbox, content_length="3")) as body:
        assert body == b"abc"


async def test_a_body_that_does_not_arrive_is_given_up():
    """A client that stops in the middle gets a 408 and holds nothing."""
    inbox: asyncio.Queue = asyncio.Queue()
    inbox.put_nowait(part(b"ab", True))
    async with Intake(10, timeout_s=0.02).body(request(inbox, content_length="3")) as body:
        assert isinstance(body, Failure)
        assert body.status == 408


async def test_a_client_that_leaves_in_the_middle_is_no_error_of_ours():
    """A disconnect within the body is named so."""
    inbox: asyncio.Queue = asyncio.Queue()
    for message in (part(b"ab", True), {"type": "http.disconnect"}):
        inbox.put_nowait(message)
    async with Intake(10).body(request(inbox, content_length="3")) as body:
        assert isinstance(body, Failure)
        assert body.name == "client_gone"


async def test_a_client_that_waits_for_a_go_ahead_sends_nothing():
    """A declared length above the limit is refused at once where the client asked before sending."""
    async with Intake(10).body(request(asyncio.Queue(), content_length="11", expect="100-continue")) as body:
        assert isinstance(body, Failure)
        assert body.status == 413


async def test_few_large_bodies_are_held_at_once():
    """A large body waits while others are held, and its wait is bounded; a small one does not wait."""
    intake = Intake(4 * LARGE_BYTES, timeout_s=0.05)
    length = str(2 * LARGE_BYTES)

    async def hold(entered: asyncio.Semaphore, leave: asyncio.Event) -> None:
        inbox: asyncio.Queue = asyncio.Queue()
        inbox.put_nowait(part(b"large", False))
        async with intake.body(request(inbox, content_length=length)) as body:
            assert body == b"large"
            entered.release()
            await leave.wait()

    entered, leave = asyncio.Semaphore(0), asyncio.Event()
    holding = [asyncio.create_task(hold(entered, leave)) for _ in range(LARGE_AT_ONCE)]
    for _ in holding:
        await entered.acquire()
    for declared, expected in ((length, 408), ("5", None)):
        inbox: asyncio.Queue = asyncio.Queue()
        inbox.put_nowait(part(b"small", False))
        async with intake.body(request(inbox, content_length=declared)) as body:
            assert (body.status if isinstance(body, Failure) else None) == expected
    leave.set()
    await asyncio.gather(*holding)
