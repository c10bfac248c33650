"""A server that observes says so on everything it gives out; one that enforces says that."""

from kvfence.gateway.fence import Fence
from kvfence.protocol.guards import OBSERVABLE
from tests.unit.gateway.fakes import Running, chat, say
from tests.unit.gateway.test_fence import FakeSource

OBSERVED = tuple(sorted(OBSERVABLE))
PATHS = ("/health", "/ready", "/metrics", "/fence", "/fence.json", "/v1/models", "/nowhere")


async def test_every_answer_of_a_server_that_observes_carries_the_header() -> None:
    """Answers, streams, refusals and pages; health names the guards, metrics say 0, the fence lists them."""
    running = Running(say("Paris"), observed=OBSERVED, fence=Fence(FakeSource()))
    async with running.client() as client:
        for path in PATHS:
            assert (await client.get(path)).headers["x-kvfence-enforcing"] == "0"
        for stream in (False, True):
            answer = await client.post("/v1/chat/completions", json=chat("x", stream=stream))
            assert answer.headers["x-kvfence-enforcing"] == "0"
        health = (await client.get("/health")).json()
        metrics = (await client.get("/metrics")).text
        fence = (await client.get("/fence.json")).json()
    assert (health["enforcing"], tuple(health["observed"])) == (False, OBSERVED)
    assert "\nkvfence_enforcing 0.0\n" in metrics
    assert tuple(fence["observed"]) == OBSERVED


async def test_a_server_that_enforces_says_so_without_a_header() -> None:
    """Nothing to be warned of."""
    running = Running(say("Paris"), fence=Fence(FakeSource()))
    async with running.client() as client:
        answers = [await client.get(path) for path in PATHS]
        health = (await client.get("/health")).json()
        metrics = (await client.get("/metrics")).text
    assert not any("x-kvfence-enforcing" in answer.headers for answer in answers)
    assert (health["enforcing"], health["observed"]) == (True, [])
    assert "\nkvfence_enforcing 1.0\n" in metrics
