"""What /fence says, of whom, and to whom."""

import base64

import pytest

from kvfence.core.ids import AttemptId, Incarnation, RequestId, TenantId
from kvfence.core.pages import PageState
from kvfence.gateway.fence import HANDOFFS_MAX, PAGE, POLICY, Fence, Tenants, WorkerView, stage_of
from kvfence.gateway.registry import load_keys
from kvfence.protocol.guards import ASKED
from kvfence.protocol.handoff import GatewayHandoff
from kvfence.protocol.transitions import GatewayPhase
from kvfence.runtime.owners import OWNERS_MAX, Owner, Owners
from kvfence.runtime.page_map import PageMap, PageRun
from tests.unit.gateway.fakes import Running, say

GATEWAY, PREFILL, DECODE = Incarnation("a" * 32), Incarnation("b" * 32), Incarnation("c" * 32)
STATES = [state.value for state in PageState]


def attempt(counter: int) -> AttemptId:
    """An attempt of the one gateway."""
    return AttemptId(GATEWAY, counter)


class FakeSource:
    """Two workers whose pages are held by the tenants that a test names."""

    def __init__(self, *tenants: str) -> None:
        self.owners = {attempt(number + 1): Owner(TenantId(name), 10.0) for number, name in enumerate(tenants)}
        self.phase = GatewayPhase.DISPATCHED
        self.state = "ready"
        self.num_free = 5
        self.decisions = {("fits", "gateway", "pass"): 3, ("digest-matches", "decode", "refuse"): 1}

    def views(self) -> list[WorkerView]:
        held = [PageRun(STATES.index("granted"), number, 2) for number in range(len(self.owners))]
        rest = (PageRun(STATES.index("free"), -1, self.num_free), PageRun(STATES.index("sealed"), -1, 1))
        runs = (*held, *rest)
        holders = tuple((0, each.counter) for each in self.owners)
        phases = tuple((number, "running") for number in range(len(holders)))
        drawn = PageMap(sum(run.num_cells for run in runs), 1, runs, (GATEWAY,), holders, phases)
        counts = {"free": self.num_free, "granted": 2 * len(held), "cached": 1}
        return [
            WorkerView("prefill", "prefill", PREFILL, self.state, 0, counts, drawn),
            WorkerView("decode", "decode", DECODE, "ready", 2, {}, None),
        ]

    def handoffs(self) -> list[GatewayHandoff]:
        return [
            GatewayHandoff(each, RequestId(f"r{each.counter}"), PREFILL, DECODE, 40, 8, 1, each, phase=self.phase)
            for each in self.owners
        ]

    def owner_of(self, of: AttemptId) -> Owner | None:
        return self.owners.get(of)

    def guard_decisions(self) -> dict[tuple[str, str, str], int]:
        return self.decisions


def test_pages_hand_offs_and_workers_are_said_with_tenants_as_numbers() -> None:
    """A page's state, its tenant's index and its attempt; no tenant's name is anywhere."""
    fence = Fence(FakeSource("acme", "globex", "acme"), clock=lambda: 12.5)
    state = fence.state("toy", 16)
    prefill, decode = state.workers
    granted = STATES.index("granted")
    assert prefill.cells == [
        (granted, 0, 1, 2),
        (granted, 1, 2, 2),
        (granted, 0, 3, 2),
        (STATES.index("free"), -1, 0, 5),
        (state.states.index("cached"), -1, 0, 1),
    ]
    assert (decode.pages, decode.cells, decode.restarts, decode.id) == (0, [], 2, "cccccccc")
    assert [tenant.label for tenant in state.tenants] == ["tenant 1", "tenant 2"]
    assert len({tenant.hue for tenant in state.tenants}) == 2
    first = state.handoffs[0]
    assert (first.tenant, first.stage, first.prefill, first.decode, first.age_s) == (
        0,
        "prefill",
        "prefill",
        "decode",
        2.5,
    )
    assert "acme" not in str(state)


def test_a_number_means_one_tenant_for_good() -> None:
    """Who has nothing open is not shown, and keeps the number and the colour."""
    source = FakeSource("acme", "globex")
    fence = Fence(source)
    (_, globex) = fence.state("toy", 16).tenants
    source.owners = {attempt(9): Owner(TenantId("globex"), 0.0)}
    assert fence.state("toy", 16).tenants == [globex]


def test_names_are_shown_where_the_operator_asked() -> None:
    """And the server's own probe is called that, either way."""
    tenants = Tenants(names=True)
    rows, _ = tenants.rows([tenants.number(TenantId("acme")), tenants.number(TenantId("@probe"))])
    assert [row.label for row in rows] == ["acme", "the server's own probe"]


def test_an_attempt_that_nobody_remembers_has_no_tenant() -> None:
    """Its pages are drawn all the same."""
    source = FakeSource("acme")
    source.owner_of = lambda of: None  # type: ignore[method-assign]
    state = Fence(source).state("toy", 16)
    assert state.tenants == []
    assert state.workers[0].cells[0] == (STATES.index("granted"), -1, 1, 2)


def test_every_guard_is_there_at_every_place() -> None:
    """Asked or not; with its answers."""
    guards = Fence(FakeSource()).state("toy", 16).guards
    assert {f"{row.guard}@{row.place}" for row in guards} == ASKED
    (digest,) = [row for row in guards if row.guard == "digest-matches"]
    assert (digest.answers, digest.refuses) == ({"refuse": 1}, True)


def test_many_hand_offs_are_counted_and_not_all_listed() -> None:
    """The answer is bounded."""
    state = Fence(FakeSource(*(f"t{n}" for n in range(HANDOFFS_MAX + 5)))).state("toy", 16)
    assert (len(state.handoffs), state.handoffs_more) == (HANDOFFS_MAX, 5)


@pytest.mark.parametrize(
    ("phase", "at_prefill", "at_decode", "stage"),
    [
        (GatewayPhase.OFFERED, "", "waiting", "reserve"),
        (GatewayPhase.DISPATCHED, "", "granted", "queue"),
        (GatewayPhase.DISPATCHED, "waiting", "granted", "queue"),
        (GatewayPhase.DISPATCHED, "running", "granted", "prefill"),
        (GatewayPhase.DISPATCHED, "sent", "granted", "verify"),
        (GatewayPhase.DISPATCHED, "running", "verifying", "verify"),
        (GatewayPhase.DISPATCHED, "aborting", "revoked", "revoked"),
        (GatewayPhase.STREAMING, "", "running", "decode"),
    ],
)
def test_the_stage_is_what_was_said_last(phase: GatewayPhase, at_prefill: str, at_decode: str, stage: str) -> None:
    """Gateway, prefill and decode each know a part."""
    handoff = GatewayHandoff(attempt(1), RequestId("r"), PREFILL, DECODE, 1, 1, 1, attempt(1), phase=phase)
    assert stage_of(handoff, at_prefill, at_decode) == stage


def test_owners_are_remembered_a_while() -> None:
    """The first word about an attempt stays; the oldest is forgotten at the bound."""
    owners = Owners(lambda: 1.0)
    for counter in range(OWNERS_MAX + 1):
        owners.note(attempt(counter), TenantId("first"))
        owners.note(attempt(counter), TenantId("second"))
    assert owners.of(attempt(0)) is None
    assert owners.of(attempt(1)) == Owner(TenantId("first"), 1.0)


# ---- who may look


async def test_without_keys_only_loopback_looks() -> None:
    """As everywhere: a web page that points its own name here gets nothing."""
    running = Running(say("x"), fence=Fence(FakeSource()))
    for path in ("/fence", "/fence.json"):
        async with running.client(host="evil.example") as client:
            assert (await client.get(path)).status_code == 403
        async with running.client() as client:
            assert (await client.get(path)).status_code == 200


async def test_with_keys_an_operators_key_is_needed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """No key, a tenant's key and a wrong key get 401 and a browser's prompt; the operator's key works both ways."""
    (tmp_path / "keys").write_text("sk-acme acme\nsk-ops @operator\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"), fence=Fence(FakeSource("acme")))

    def basic(password: str) -> str:
        return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()

    async with running.client(host="elsewhere.example") as client:
        for header in ("", "Bearer sk-acme", "Bearer sk-op", basic("sk-acme"), "Basic %%%", "Basic " + "A" * 3):
            for path in ("/fence", "/fence.json"):
                refused = await client.get(path, headers={"authorization": header})
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Basic realm=")
                assert "acme" not in refused.text
        for header in ("Bearer sk-ops", basic("sk-ops")):
            assert (await client.get("/fence.json", headers={"authorization": header})).status_code == 200
        refused = await client.get("/v1/models", headers={"authorization": "Bearer sk-ops"})
        assert refused.status_code == 401
    assert "sk-" not in running.log.getvalue()


async def test_where_no_operator_is_named_nobody_looks(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The refusal says which line to add."""
    (tmp_path / "keys").write_text("sk-acme acme\n")
    running = Running(say("x"), load_keys(tmp_path / "keys"), fence=Fence(FakeSource()))
    async with running.client(authorization="Bearer sk-acme") as client:
        refused = await client.get("/fence")
    assert refused.status_code == 401
    assert "@operator" in refused.json()["error"]["message"]


async def test_the_page_allows_its_own_script_and_nothing_else() -> None:
    """The policy names digests of what is in the page: no inline handler, no frame, no other origin."""
    running = Running(say("x"), fence=Fence(FakeSource()))
    async with running.client() as client:
        page = await client.get("/fence")
        state = await client.get("/fence.json")
    assert page.headers["content-security-policy"] == POLICY
    assert "'unsafe" not in POLICY
    assert POLICY.count("sha256-") == 2
    assert "frame-ancestors 'none'" in POLICY
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (page.headers["cache-control"], state.headers["cache-control"]) == ("no-store", "no-store")
    assert b"http://" not in PAGE
    assert b"https://" not in PAGE
    assert b"innerHTML" not in PAGE
    assert [line["route"] for line in running.lines()] == ["/fence"]
