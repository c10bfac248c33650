"""The HTTP app: routes, who may ask, and the way from a body to a session.

Not for: listening (``server.py``), the workers (``runtime/``).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from msgspec import Struct, field, json, to_builtins
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.typing import FilteringBoundLogger

from kvfence.core.errors import RemoteProtocolError
from kvfence.core.ids import RequestId, TenantId
from kvfence.gateway import canonical, metrics
from kvfence.gateway.answers import ChatShape, CompletionShape, ModelCard, ModelList, Naming, Shape
from kvfence.gateway.canonical import Canonical, Tracing
from kvfence.gateway.elsewhere import refuse_address
from kvfence.gateway.fence import HEADERS, PAGE, Fence
from kvfence.gateway.intake import Intake, identify, identify_operator
from kvfence.gateway.logs import RequestRecord
from kvfence.gateway.metrics import GatewayMetrics, GaugeSource
from kvfence.gateway.openapi import describe_api
from kvfence.gateway.probe import Probe, ProbeState
from kvfence.gateway.quotas import Allowance, Ask, Quotas
from kvfence.gateway.registry import KeyRegistry
from kvfence.gateway.responses import INVALID, Failure, error_body, error_headers, failure_of
from kvfence.gateway.sessions import Choice, Reading, Session, TokenClock
from kvfence.gateway.streams import Delivery, GenerationResponse
from kvfence.gateway.translate import (
    Caller,
    Served,
    TextTokenizer,
    Translation,
    translate_chat,
    translate_completion,
)
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import Generations
from kvfence.runtime.stages import Journeys

Translate = Callable[[bytes, Served, Caller], Translation | Failure]

INSTEAD = f"{canonical.CHAT}, {canonical.COMPLETIONS} or {canonical.MODELS}"


NOTHING_DRAWN = Failure(404, INVALID, "This server draws no fence.", "not_found")
_HTML = "text/html; charset=utf-8"


class GatewayDeps(Struct, frozen=True):
    """All that the app is made of. ``observed``: guards whose refusals are counted and not obeyed.

    Units:
        probe_every_s: seconds between probes of the real path; 0: none, and /ready asks the workers' states.
    """

    generations: Generations
    tokenizer: TextTokenizer
    model: str
    log: FilteringBoundLogger
    keys: KeyRegistry
    gauges: GaugeSource | None = None
    observed: tuple[str, ...] = ()
    fence: Fence | None = None
    journeys: Journeys = field(default_factory=Journeys)
    tracing: Tracing | None = None
    max_body_bytes: int = 16 << 20
    deadline_s: float = 600.0
    probe_every_s: float = 10.0
    allowance: Allowance = Allowance()


def build_app(deps: GatewayDeps) -> Starlette:
    """Build the app; it holds no socket and starts nothing before its lifespan begins."""
    gateway = Gateway(deps)
    routes = [
        Route(canonical.MODELS, gateway.models, methods=["GET"]),
        Route(canonical.MODELS + "/{model:path}", gateway.model, methods=["GET"]),
        Route(canonical.CHAT, gateway.chat, methods=["POST"]),
        Route(canonical.COMPLETIONS, gateway.completions, methods=["POST"]),
        Route(canonical.HEALTH, gateway.health, methods=["GET"]),
        Route(canonical.READY, gateway.ready, methods=["GET"]),
        Route(canonical.METRICS, gateway.metrics, methods=["GET"]),
        Route(canonical.FENCE, gateway.fence_page, methods=["GET"]),
        Route(canonical.FENCE_JSON, gateway.fence_state, methods=["GET"]),
        Route(canonical.OPENAPI, gateway.openapi, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Canonical,
                metrics=gateway.counts,
                log=deps.log,
                tracing=deps.tracing,
                observing=bool(deps.observed),
            )
        ],
        exception_handlers={HTTPException: _answer_http_error, RemoteProtocolError: _answer_too_early},
        lifespan=gateway.lifespan,
    )
    app.router.redirect_slashes = False
    return app


class Gateway:
    """The routes and what they share.

    Holds: one thread that reads and tokenises bodies, one at a time; a tenant has one in line, the others wait their
    turn, so that nobody waits for more than one body of each other tenant.
    """

    def __init__(self, deps: GatewayDeps) -> None:
        self.counts = GatewayMetrics(enforcing=not deps.observed)
        self.counts.add_workers(deps.generations, deps.gauges)
        if deps.tracing is not None:
            self.counts.add_spans(deps.tracing.counts)
        self._deps = deps
        self._intake = Intake(deps.max_body_bytes)
        self._quotas = Quotas(deps.allowance, deps.keys.allowances(deps.allowance))
        self._probe = Probe(deps.generations, deps.log, deps.probe_every_s)
        self._translator = ThreadPoolExecutor(1, "kvfence-translate")
        self._turns: WeakValueDictionary[TenantId, asyncio.Semaphore] = WeakValueDictionary()
        self._created = int(time.time())

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Probe while the app runs."""
        probing = asyncio.create_task(self._probe.run()) if self._deps.probe_every_s else None
        try:
            yield
        finally:
            if probing is not None:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
            self._translator.shutdown(wait=False, cancel_futures=True)

    # ---- generation --------------------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(request, translate_chat, ChatShape)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._generate(request, translate_completion, CompletionShape)

    async def _generate(self, request: Request, translate: Translate, shape: Callable[[Naming], Shape]) -> Response:
        record = record_of(request)
        tenant = self._identify(request, record)
        if isinstance(tenant, Failure):
            return refuse(tenant, record)
        translation = await self._translate(request, translate, tenant)
        if isinstance(translation, Failure):
            return refuse(translation, record)
        record.num_prompt = len(translation.request.token_ids)
        session = self._open_session(translation, record)
        lease = self._quotas.take(tenant, _ask_of(translation))
        if isinstance(lease, Failure):
            return refuse(lease, record)
        naming = Naming(record.id, self._deps.model, int(time.time()), translation.with_usage)
        page_size = self._deps.generations.capacity.page_size
        delivery = Delivery(
            shape(naming),
            translation.stream,
            translation.with_usage,
            page_size,
            usage_always=translation.usage_always,
            headers=lease.headers,
            on_end=lambda num_answer: lease.end(num_answer, refused=record.status >= 400),
        )
        return GenerationResponse(session, delivery, record, self._deps.log)

    async def _translate(self, request: Request, translate: Translate, tenant: TenantId) -> Translation | Failure:
        caller = Caller(RequestId(record_of(request).id), tenant, self._deps.deadline_s)
        async with self._intake.body(request, tenant) as body:
            if isinstance(body, Failure):
                return body
            served = Served(self._deps.model, self._deps.tokenizer, self._deps.generations.capacity)
            async with self._turns.setdefault(tenant, asyncio.Semaphore(1)):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._translator, translate, body, served, caller)

    def _open_session(self, translation: Translation, record: RequestRecord) -> Session:
        tokenizer, generations, calls = self._deps.tokenizer, self._deps.generations, translation.calls
        context, special = translation.request.token_ids[-8:], calls.special if calls is not None else ()
        reading = Reading(
            lambda: tokenizer.detokenizer(context, special),
            tokenizer.token_bytes,
            calls.reader if calls is not None else None,
        )
        requests = translation.requests
        began_ns = int(record.started_s * 1e9)
        record.journeys += [self._deps.journeys.open(each.id, began_ns) for each in requests]
        choices = [Choice(index, request, reading) for index, request in enumerate(requests)]
        events = generations.generate_together(requests)
        return Session(choices, events, TokenClock(self.counts, record.started_s), generations.leave)

    def _identify(self, request: Request, record: RequestRecord) -> TenantId | Failure:
        tenant = identify(request, self._deps.keys)
        if not isinstance(tenant, Failure):
            record.tenant = tenant
        return tenant

    # ---- the rest ----------------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return self._for_tenants(request, lambda: ok(ModelList([self._card()])))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        if request.path_params["model"] == self._deps.model:
            return self._for_tenants(request, lambda: ok(self._card()))
        message = f"There is no such model here; the one that is served is {self._deps.model}."
        unknown = Failure(404, INVALID, message, "model_not_found", "model")
        return self._for_tenants(request, lambda: refuse(unknown, record_of(request)))

    async def health(self, _: Request) -> Response:
        """GET /health: this process answers; what it knows of the workers."""
        observed = self._deps.observed
        guarding = {"enforcing": not observed, "observed": observed}
        return ok({"status": "ok", "model": self._deps.model, **guarding, "workers": self._workers()})

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 once the real path has worked, and as long as it does."""
        state = self._ready_state()
        body = {"status": "ready" if state.ready else "not ready", "probe": state, "workers": self._workers()}
        record_of(request).reason = "ok" if state.ready else "not_ready"
        return ok(body, 200 if state.ready else 503)

    async def metrics(self, _: Request) -> Response:
        """GET /metrics, in Prometheus' text format."""
        return Response(self.counts.render(), headers={"content-type": metrics.CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        """GET /openapi.json: what can be asked here, for machines."""
        return ok(describe_api(self._deps.model, with_keys=not self._deps.keys.open))

    async def fence_page(self, request: Request) -> Response:
        """GET /fence: the page that draws the state, for operators."""
        return self._for_operators(request, lambda _: Response(PAGE, headers={**HEADERS, "content-type": _HTML}))

    async def fence_state(self, request: Request) -> Response:
        """GET /fence.json: the state, as it is drawn."""

        def answer(fence: Fence) -> Response:
            page_tokens = self._deps.generations.capacity.page_size
            response = ok(fence.state(self._deps.model, page_tokens, self._deps.observed))
            response.headers.update({"cache-control": "no-store", "x-content-type-options": "nosniff"})
            return response

        return self._for_operators(request, answer)

    def _for_operators(self, request: Request, answer: Callable[[Fence], Response]) -> Response:
        failure = identify_operator(request, self._deps.keys)
        if failure is not None:
            refusal = refuse(failure, record_of(request))
            if failure.status == 401:
                refusal.headers["www-authenticate"] = 'Basic realm="kvfence operators", charset="UTF-8"'
            return refusal
        if self._deps.fence is None:
            return refuse(NOTHING_DRAWN, record_of(request))
        return answer(self._deps.fence)

    def _ready_state(self) -> ProbeState:
        if self._deps.generations.draining:
            return ProbeState(ready=False, result="draining", age_s=None)
        if self._deps.probe_every_s:
            return self._probe.state()
        workers = self._deps.generations.workers()
        ready = {each.role for each in workers if each.state == "ready"}
        return ProbeState(bool(ready) and ready == {each.role for each in workers}, "off", None)

    def _workers(self) -> list[dict[str, object]]:
        return [{**to_builtins(each), "incarnation": each.incarnation[:8]} for each in self._deps.generations.workers()]

    def _card(self) -> ModelCard:
        return ModelCard(self._deps.model, self._created, self._deps.generations.capacity.context_tokens)

    def _for_tenants(self, request: Request, answer: Callable[[], Response]) -> Response:
        tenant = self._identify(request, record_of(request))
        return refuse(tenant, record_of(request)) if isinstance(tenant, Failure) else answer()


def _ask_of(translation: Translation) -> Ask:
    num_choices = translation.num_choices
    return Ask(num_choices, len(translation.request.token_ids), num_choices * translation.request.max_tokens)


def record_of(request: Request) -> RequestRecord:
    """Give the record that the middleware made for this request."""
    record = request.state.record
    if not isinstance(record, RequestRecord):
        raise TypeError("the request did not pass through Canonical")
    return record


def ok(body: object, status: int = 200) -> Response:
    """Give a JSON response."""
    return Response(json.encode(body), status, headers={"content-type": "application/json"})


def refuse(failure: Failure, record: RequestRecord) -> Response:
    """Give an error as a response, and its name to the log."""
    record.reason = failure.name
    return Response(error_body(failure), failure.status, headers=error_headers(failure))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in OpenAI's shape; the path is not repeated."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        failure = Failure(405, INVALID, "This method is not allowed here; see the header Allow.", "method_not_allowed")
    else:
        failure = refuse_address(request.url.path, INSTEAD)
    response = refuse(failure, record_of(request))
    for name, value in ((error.headers or {}) if isinstance(error, HTTPException) else {}).items():
        response.headers[name] = value
    return response


async def _answer_too_early(request: Request, _: Exception) -> Response:
    """The workers are still starting, so that nothing is known of their capacity."""
    return refuse(failure_of(EndReason.NO_WORKER), record_of(request))
