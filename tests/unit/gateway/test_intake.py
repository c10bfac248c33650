import asyncio

from starlette.requests import Request

from kvfence.core.ids import TenantId
from kvfence.gateway.intake import LARGE_AT_ONCE, LARGE_BYTES, LARGE_OF_TENANT, Intake
from kvfence.gateway.responses import Failure

ACME = TenantId("acme")


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
    async with Intake(10).body(request(inbox, content_length="3"), ACME) as body:
        assert body == b"abc"


async def test_a_body_that_does_not_arrive_is_given_up():
    """A client that stops in the middle gets a 408 and holds nothing."""
    inbox: asyncio.Queue = asyncio.Queue()
    inbox.put_nowait(part(b"ab", True))
    async with Intake(10, timeout_s=0.02).body(request(inbox, content_length="3"), ACME) as body:
        assert isinstance(body, Failure)
        assert body.status == 408


async def test_a_client_that_leaves_in_the_middle_is_no_error_of_ours():
    """A disconnect within the body is named so."""
    inbox: asyncio.Queue = asyncio.Queue()
    for message in (part(b"ab", True), {"type": "http.disconnect"}):
        inbox.put_nowait(message)
    async with Intake(10).body(request(inbox, content_length="3"), ACME) as body:
        assert isinstance(body, Failure)
        assert body.name == "client_gone"


async def test_a_client_that_waits_for_a_go_ahead_sends_nothing():
    """A declared length above the limit is refused at once where the client asked before sending."""
    async with Intake(10).body(request(asyncio.Queue(), content_length="11", expect="100-continue"), ACME) as body:
        assert isinstance(body, Failure)
        assert body.status == 413


async def test_few_large_bodies_are_held_at_once_and_fewer_of_one_tenant():
    """Beyond its places a tenant's large body waits, with a bound; another tenant's does not, nor does a small one."""
    intake = Intake(4 * LARGE_BYTES, timeout_s=0.05)
    length = str(2 * LARGE_BYTES)

    async def hold(tenant: TenantId, entered: asyncio.Semaphore, leave: asyncio.Event) -> None:
        inbox: asyncio.Queue = asyncio.Queue()
        inbox.put_nowait(part(b"large", False))
        async with intake.body(request(inbox, content_length=length), tenant) as body:
            assert body == b"large"
            entered.release()
            await leave.wait()

    async def ask(tenant: TenantId, declared: str) -> int | None:
        inbox: asyncio.Queue = asyncio.Queue()
        inbox.put_nowait(part(b"other", False))
        async with intake.body(request(inbox, content_length=declared), tenant) as body:
            return body.status if isinstance(body, Failure) else None

    async def fill(tenants: list[TenantId], leave: asyncio.Event) -> list[asyncio.Task]:
        entered = asyncio.Semaphore(0)
        holding = [asyncio.create_task(hold(tenant, entered, leave)) for tenant in tenants]
        for _ in holding:
            await entered.acquire()
        return holding

    leave = asyncio.Event()
    holding = await fill([ACME] * LARGE_OF_TENANT, leave)
    assert [await ask(ACME, length), await ask(ACME, "5"), await ask(TenantId("other"), length)] == [408, None, None]
    others = [TenantId(f"t{number}") for number in range(LARGE_AT_ONCE - LARGE_OF_TENANT)]
    holding += await fill(others, leave)
    assert [await ask(TenantId("other"), length), await ask(TenantId("other"), "5")] == [408, None]
    leave.set()
    await asyncio.gather(*holding)
    assert await ask(ACME, length) is None
