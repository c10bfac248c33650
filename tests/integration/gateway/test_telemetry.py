"""Logs and spans through the real path: HTTP, dispatcher, two worker processes, pages moved between them."""

import asyncio
import gc
import io
import json
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvfence.cli.compose import FenceView
from kvfence.gateway.app import GatewayDeps, build_app
from kvfence.gateway.fence import Fence
from kvfence.gateway.logs import open_log
from kvfence.gateway.otel import OtelTracing
from kvfence.gateway.registry import KeyRegistry
from kvfence.runtime.stages import STAGES
from tests.integration.runtime.faults import Fault
from tests.integration.runtime.pairs import Pair, Scene, running_pair, until
from tests.unit.gateway.fakes import ByteTokenizer

PROMPT = "a secret prompt of some length that fills several pages of sixteen tokens each"
STAGE_SPANS = [*STAGES, "stream"]


class WideTokenizer(ByteTokenizer):
    """Bytes in, one letter a token out: the arithmetic model has more tokens than bytes."""

    def detokenizer(self, context: Sequence[int] = (), shown: Sequence[str] = ()) -> Any:
        return WideStream()


class WideStream:
    """One letter a token."""

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join(chr(65 + each % 26) for each in token_ids)

    def flush(self) -> str:
        return ""


class Site:
    """A gateway in front of a running pair."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.exporter = InMemorySpanExporter()
        self.log = io.StringIO()
        log = open_log("json", self.log)
        self.tracing = OtelTracing("toy", log, self.exporter)
        dispatcher = pair.supervisor.dispatcher
        self.app = build_app(
            GatewayDeps(
                generations=dispatcher,
                tokenizer=WideTokenizer(),
                model="toy",
                log=log,
                keys=KeyRegistry(),
                journeys=dispatcher.journeys,
                fence=Fence(FenceView(pair.supervisor)),
                tracing=self.tracing,
                probe_every_s=0,
            )
        )

    async def complete(self, **fields: Any) -> httpx.Response:
        """Ask for a completion."""
        body = {"model": "toy", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, **fields}
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/completions", json=body)

    async def fence(self) -> dict[str, Any]:
        """What /fence.json says."""
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/fence.json")).json()

    def line(self) -> dict[str, Any]:
        """The last canonical line."""
        return json.loads(self.log.getvalue().splitlines()[-1])

    def spans(self) -> dict[str, ReadableSpan]:
        """The spans of the last request."""
        self.tracing.flush()
        spans = {span.name: span for span in self.exporter.get_finished_spans()}
        self.exporter.clear()
        return spans


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """One site for the module."""
    async with running_pair(Scene(), tmp_path_factory.mktemp("pair")) as pair:
        made = Site(pair)
        yield made
        made.tracing.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_every_stage_is_in_the_line_and_in_the_spans(site: Site) -> None:
    """Stages follow each other inside the request, the workers are named, and no content is in either."""
    response = await site.complete()
    assert response.status_code == 200
    line, spans = site.line(), site.spans()
    workers = tuple(site.pair.life(role).incarnation[:8] for role in ("prefill", "decode"))
    assert (line["prefill"], line["decode"]) == workers
    assert (line["stage"], line["attempts"], line["refusals"]) == ("decode", 1, [])
    lasted = {stage: line[f"{stage}_ms"] for stage in STAGES}
    assert all(0 <= ms <= line["duration_ms"] for ms in lasted.values()), lasted
    assert sum(lasted.values()) - lasted["transfer"] <= line["duration_ms"] + 5
    assert [name for name in spans if name in STAGE_SPANS] == STAGE_SPANS
    root = spans["POST /v1/completions"]
    begins = [spans[stage].start_time or 0 for stage in STAGES]
    assert begins[0] == root.start_time
    assert begins == sorted(begins)
    assert all((span.end_time or 0) <= (root.end_time or 0) + 1_000_000 for span in spans.values())
    assert spans["prefill"].parent == spans["text_completion toy"].context
    said = json.dumps(line) + "".join(span.to_json() for span in spans.values())
    assert "secret" not in said
    assert response.json()["choices"][0]["text"] not in said


@pytest.mark.asyncio(loop_scope="module")
async def test_a_guards_refusal_is_named(site: Site) -> None:
    """A page damaged on its way: the line says which guard refused, how far the request came and who had it."""
    site.pair.faults.arm(Fault("corrupt", "body"))
    response = await site.complete()
    line, spans = site.line(), site.spans()
    assert (response.status_code, line["reason"]) == (500, "digest_mismatch")
    assert line["refusals"] == ["digest-matches@decode"]
    assert line["stage"] == "verify"
    assert line["transfer_ms"] is not None
    assert line["adopt_ms"] is None
    attributes = spans["text_completion toy"].attributes
    assert attributes is not None
    assert attributes["kvfence.refusals"] == ("digest-matches@decode",)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_does_not_fit_names_the_gateways_guard(site: Site) -> None:
    """The refusal at the gateway has no worker and no stage behind admission."""
    response = await site.complete(prompt="x" * 500, max_tokens=200)
    line = site.line()
    assert (response.status_code, line["reason"]) == (400, "does_not_fit")
    assert (line["refusals"], line["prefill"], line["attempts"]) == (["fits@gateway"], "", 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_whose_worker_dies_says_how_far_it_came(site: Site) -> None:
    """Prefill is killed under a request: 503, and the stage that was under way."""
    site.pair.signal("prefill", signal.SIGSTOP)
    asking = asyncio.create_task(site.complete())
    journeys = site.pair.supervisor.dispatcher.journeys
    await until("dispatched", lambda: any("dispatched" in each.marks for each in journeys._of_request.values()))
    site.pair.signal("prefill", signal.SIGKILL)
    response = await asking
    line, spans = site.line(), site.spans()
    assert (response.status_code, line["reason"]) == (503, "worker_lost")
    assert line["stage"] == "queue"
    assert line["prefill_ms"] is None
    assert spans["queue"].status.status_code.name == "ERROR"
    await site.pair.ready(1, "prefill")
    await site.pair.all_free()
    gc.collect()  # a failed answer's traceback may hold its record for a while
    assert not journeys._of_attempt
    assert not journeys._of_request


@pytest.mark.asyncio(loop_scope="module")
async def test_the_fence_shows_a_running_requests_pages(site: Site) -> None:
    """While decode holds it, its pages are drawn adopted, under its tenant and attempt; afterwards all are free."""
    site.pair.faults.hold(len(PROMPT) + 5)
    asking = asyncio.create_task(site.complete())
    await until("decode runs it", lambda: any(h.num_emitted >= 5 for h in site.pair.supervisor.dispatcher.handoffs))
    await site.pair.next_beat("decode")
    state = await site.fence()
    (handoff,) = state["handoffs"]
    assert (handoff["stage"], state["tenants"][handoff["tenant"]]["label"]) == ("decode", "tenant 1")
    (decode,) = [worker for worker in state["workers"] if worker["role"] == "decode"]
    adopted = state["states"].index("adopted")
    of_it = [number for code, *holder, number in decode["cells"] if [code, *holder] == [adopted, 0, handoff["attempt"]]]
    assert sum(of_it) == len(PROMPT) // 16
    assert sum(number for _, _, _, number in decode["cells"]) == decode["pages"] == site.pair.scene.decode_pages
    assert {name: number for name, number in decode["counts"].items() if number} == site.pair.states("decode")
    assert "local" not in json.dumps(state)
    site.pair.faults.let_go()
    assert (await asking).status_code == 200
    await site.pair.all_free()
    state = await site.fence()
    assert state["handoffs"] == []
    held = [(tenant, attempt) for worker in state["workers"] for _, tenant, attempt, _ in worker["cells"]]
    assert set(held) == {(-1, 0)}
