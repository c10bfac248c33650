from kvfence.gateway.logs import open_log
from kvfence.gateway.probe import DEADLINE_S, Probe
from kvfence.protocol.messages import EndReason
from tests.unit.gateway.fakes import FakeGenerations, Running, end, say


class Clock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def open_probe(script, clock=None) -> tuple[Probe, FakeGenerations]:
    """Make a probe of scripted generations."""
    generations = FakeGenerations(script)
    return Probe(generations, open_log("console"), 10.0, clock or Clock()), generations


async def test_nothing_is_ready_before_the_first_success():
    """Ready begins with a generation that ended well."""
    probe, generations = open_probe(end(EndReason.NO_WORKER))
    assert not probe.state().ready
    await probe.probe()
    assert (probe.state().ready, probe.state().result) == (False, "no_worker")
    generations.script = say("xyz")
    await probe.probe()
    assert (probe.state().ready, probe.state().result, probe.state().age_s) == (True, "ok", 0.0)


async def test_a_probe_is_tiny_and_its_own_tenant():
    """A probe asks for two tokens under a tenant that no key names."""
    probe, generations = open_probe(say("xyz"))
    await probe.probe()
    (request,) = generations.requests
    assert (request.tenant, len(request.token_ids), request.max_tokens) == ("@probe", 1, 2)


async def test_a_failure_ends_readiness_and_a_full_queue_does_not():
    """A broken path is not ready; a busy one still is."""
    probe, generations = open_probe(say("xyz"))
    await probe.probe()
    generations.script = end(EndReason.QUEUE_FULL)
    await probe.probe()
    assert probe.state().ready
    generations.script = lambda _: [RuntimeError("x")]
    await probe.probe()
    assert (probe.state().ready, probe.state().result) == (False, "broke off")


async def test_an_old_result_is_no_result():
    """A probe that hangs lets readiness run out."""
    clock = Clock()
    probe, _ = open_probe(say("xyz"), clock)
    await probe.probe()
    clock.now += 30 + DEADLINE_S + 1
    assert not probe.state().ready


async def test_ready_shows_the_probe():
    """The route shows the result and its age."""
    running = Running(say("xyz"), probe_every_s=10.0)
    async with running.client() as client:
        response = await client.get("/ready")
    assert response.status_code == 503
    assert response.json()["probe"] == {"ready": False, "result": "not probed yet", "age_s": None}
