"""Learn the endpoint: what it takes, how it counts, its real input limit, prefill's rate, and whether an echo works.

The positive control matters most: a model that cannot repeat a marker cannot show a leak, and silence then means
nothing. Read next: ``limits.py``, the search for the limit.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from kvfence.probe.answers import COUNT_MAX
from kvfence.probe.client import Patience
from kvfence.probe.door import Api
from kvfence.probe.exchange import Cut, Exchange, Phase, Trouble
from kvfence.probe.phases.limits import LEFT_FOR_MORE, Found, find_limit
from kvfence.probe.stage import Canary, Ended, Stage, echoes, is_refused
from kvfence.probe.texts import NATURAL, REPETITIVE, Ruler, Wish, compose

SMALL_TOKENS = 56
CONTROL_TOKENS = 12
SHAPES = ((2, 0), (2, 6), (4, 0))
"""Lines and fillers: the second tells a filler's length, the third a line's."""

STALE_LINES, STALE_TOKENS = 4, 24
STALE_LEAST, STALE_MOST = 3, 10
LEFT_FOR_LIMIT = 16
"""Requests that the searches for limit and rate take."""


FIRST_RATE_TOKENS = 256
RATE_SHARES = (0.15, 0.33)
"""Below a third of the limit no prompt is overlong for a pool that holds a third of the context."""


async def run(stage: Stage) -> None:
    """Fill ``stage.calibration``.

    Raises:
        Ended: neither route answers.
    """
    told = stage.plan.context if stage.plan and stage.plan.context_known else None
    advertised = told or await advertised_context(stage)
    stage.calibration = replace(stage.calibration, advertised_tokens=advertised)
    controls = await _choose_api(stage)
    await _learn_fields(stage, controls)
    await _as_a_leak_reads(stage)
    await _first_rate(stage, advertised)
    found = await find_limit(stage, advertised)
    stage.calibration = replace(
        stage.calibration,
        advertised_tokens=advertised or found.named,
        limit_tokens=found.limit,
        limit_low=found.low,
        limit_high=found.high,
        unanswered_tokens=found.unanswered,
        tokens_per_word=stage.ruler.tokens_per_word if stage.calibration.has_usage else None,
    )
    await _measure_rate(stage, found)


async def advertised_context(stage: Stage) -> int | None:
    """Ask what the server says of itself: the context length, where ``/models`` names one."""
    answer = await stage.client.get("/models", stage.tenants[0])
    models = answer.get("data") if isinstance(answer, dict) else None
    for each in models if isinstance(models, list) else ():
        if isinstance(each, dict) and each.get("id") == stage.client.door.model:
            return context_of(each)
    return None


def context_of(model: dict[str, object]) -> int | None:
    """Read a model's context length, by the names that engines give it."""
    meta = model.get("meta")
    places = (model, meta) if isinstance(meta, dict) else (model,)
    for place in places:
        for name in ("max_model_len", "context_length", "max_context_length", "context_window", "n_ctx", "n_ctx_train"):
            value = place.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= COUNT_MAX:
                return value
    return None


async def _choose_api(stage: Stage) -> list[Exchange]:
    """Ask for echoes; where no route was named, take the one that answers and echoes better."""
    if stage.client.door.api is not None:
        return await _controls(stage)
    tried: list[tuple[int, Api, Ruler, list[Exchange]]] = []
    for api in (Api.COMPLETIONS, Api.CHAT):
        stage.client.api, stage.ruler = api, Ruler()
        heard = await _controls(stage, must=False)
        tried.append((_score(heard), api, stage.ruler, heard))
        if tried[-1][0] >= len(SHAPES) * 2:
            break
    score, stage.client.api, stage.ruler, heard = max(tried, key=lambda each: each[0])
    if score <= 0:
        raise Ended(Cut.GONE, f"no answer from either route: {_why(heard)}")
    return heard


def _score(heard: Sequence[Exchange]) -> int:
    return sum((each.trouble is None) + (each.trouble is None and echoes(each)) for each in heard)


async def _controls(stage: Stage, *, must: bool = True) -> list[Exchange]:
    """Ask to repeat a marker, in two lengths and with fillers: positive control and ruler in one."""
    asks = [replace(_control(stage, SMALL_TOKENS), shape=shape) for shape in SHAPES]
    heard = []
    for ask in asks:
        exchange = await stage.send(ask)
        if exchange.status in (400, 422) and exchange.limit_tokens is None and stage.client.dialect.strip():
            exchange = await stage.send(ask)  # it named no field: without all that is optional
        heard.append(exchange)
        if is_refused(exchange) and len(heard) == 1:
            break
    if must and all(map(is_refused, heard)):
        raise Ended(Cut.GONE, f"not answered: {_why(heard)}")
    return heard


def _control(stage: Stage, num_tokens: int) -> Canary:
    return Canary(
        tenant=stage.tenants[0],
        phase=Phase.CALIBRATE,
        role="control",
        group="echo",
        num_tokens=num_tokens,
        max_tokens=CONTROL_TOKENS,
        patience=Patience(120.0),
    )


def _why(heard: Sequence[Exchange]) -> str:
    last = heard[-1]
    return f"status {last.status}, {last.message}" if last.status else last.message or "nothing came"


async def _learn_fields(stage: Stage, controls: Sequence[Exchange]) -> None:
    """One prompt twice, alone, with log probabilities; then echoes of other tenants, for the count."""
    first = stage.tenants[0]
    ask, draft = stage.draft(replace(_control(stage, SMALL_TOKENS), role="twice", group="twice", logprobs=True))
    twice = [await stage.send_drafted(ask, draft), await stage.send_again(ask, draft)]
    more = [
        await stage.send(replace(_control(stage, SMALL_TOKENS), tenant=tenant, number=1, kind=stage.lines_kind(index)))
        for index, tenant in enumerate((*stage.others(first)[:2], first))
        if stage.has_room(1)
    ]
    natural = await stage.send(replace(_control(stage, SMALL_TOKENS + 20), kind=NATURAL, role="ruler"))
    asked = [each for each in (*controls, *twice, *more) if each.trouble is None]
    both = [each for each in twice if each.trouble is None]
    dropped = stage.client.dialect.dropped
    stage.calibration = replace(
        stage.calibration,
        deterministic=both[0].text == both[1].text if len(both) == 2 and "temperature" not in dropped else None,
        has_usage=any(each.prompt_tokens is not None for each in (*asked, natural)),
        has_logprobs=any(each.logprobs for each in both),
        has_seed="seed" not in dropped,
        echoes=(sum(map(echoes, asked)), len(asked)),
    )


async def _first_rate(stage: Stage, advertised: int | None) -> None:
    """Time one prompt, so that the search for the limit waits as long as this server needs."""
    num_tokens = min(FIRST_RATE_TOKENS, (advertised or FIRST_RATE_TOKENS) // 3)
    if num_tokens <= SMALL_TOKENS or not stage.has_room(LEFT_FOR_MORE, num_tokens):
        return
    heard = await stage.send(replace(_control(stage, num_tokens), role="rate", group="rate", number=1, max_tokens=4))
    if heard.trouble is None and heard.ended_s > heard.sent_s:
        rate = (heard.prompt_tokens or num_tokens) / (heard.ended_s - heard.sent_s)
        stage.calibration = replace(stage.calibration, tokens_per_s=rate)


async def _measure_rate(stage: Stage, found: Found) -> None:
    """Time fresh prompts, well below the limit: an overlong prompt that is not computed would spoil the rate."""
    top = found.low or found.limit or 512
    heard = [
        await stage.send(
            replace(
                _control(stage, max(SMALL_TOKENS, int(top * share))),
                role="rate",
                group="rate",
                number=index + 2,
                max_tokens=4,
            )
        )
        for share in RATE_SHARES
        for index in range(2)
        if stage.has_room(1, int(top * share))
    ]
    timed = [
        each for each in (*stage.exchanges, *heard) if each.trouble is None and each.ttft_s and not each.cached_tokens
    ]
    overhead = min((each.ttft_s or 0.0 for each in timed), default=None)
    rates = [_rate(each, overhead or 0.0) for each in timed if each.ask.role == "rate"]
    stage.calibration = replace(
        stage.calibration, overhead_s=overhead, tokens_per_s=max((rate for rate in rates if rate), default=None)
    )


async def _as_a_leak_reads(stage: Stage) -> None:
    """Ask prompts such as a leak puts together: a beginning of one's own, then lines that were cut off anywhere.

    The share of answers that show the lines' marker is the chance that a leak is seen.
    """
    for number in range(max(STALE_LEAST, min(STALE_MOST, stage.requests_left - LEFT_FOR_LIMIT))):
        if not stage.has_room(1):
            return
        tenant = stage.tenants[number % len(stage.tenants)]
        own, stale = stage.markers.of(tenant, 2 * number), stage.markers.of(tenant, 2 * number + 1)
        begin = compose(Wish(REPETITIVE, (own,), 0, stage.fresh_nonce()), 1, 0)
        lines = compose(Wish(REPETITIVE, (stale,), 0, 0), STALE_LINES, 0).partition("\n")[2]
        cut = stage.rng.randrange(len(lines) // 2)
        canary = replace(
            _control(stage, SMALL_TOKENS), tenant=tenant, role="stale", group="stale", max_tokens=STALE_TOKENS
        )
        await stage.send_drafted(
            *stage.draft_stale(canary, begin[: len(begin) // 2] + lines[cut : -1 - cut // 3], stale)
        )


def _rate(exchange: Exchange, overhead_s: float) -> float | None:
    """Give tokens a second, without what every request takes, where that leaves enough to divide by."""
    num_tokens, ttft = exchange.prompt_tokens or exchange.ask.num_tokens, exchange.ttft_s
    if num_tokens is None or not ttft or exchange.trouble is Trouble.BROKEN:
        return None
    return num_tokens / (ttft - overhead_s if ttft > 1.3 * overhead_s else ttft)
