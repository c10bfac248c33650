"""Records as a run against an endpoint makes them: a sound one of any temper, or one with a fault.

An endpoint is simulated from the outside alone: what it answers to which prompt, and when. Nothing is sent.
"""

import random
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from kvfence.probe.exchange import Ask, Calibration, Exchange, Phase, Record, Target, Trouble

_FIRST = ("am", "bar", "cob", "dol", "fen", "gar", "hel", "jun", "kel", "lan", "mar", "nec", "oli", "pan", "qua")
_LAST = ("ber", "ley", "alt", "phin", "nel", "lic", "met", "gle", "tern", "dow", "low", "tar", "ve", "ther", "rt", "zo")
WORDS = tuple(first + last for first in _FIRST for last in _LAST)
DIGITS = tuple(f"{number:04}" for number in range(10_000))
LISTS = (WORDS, WORDS, WORDS, DIGITS)
COMMON = (
    "the", "a", "of", "to", "and", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as",
    "they", "at", "be", "this", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we",
)  # fmt: skip


class Temper(Struct, frozen=True, kw_only=True):
    """What a sound endpoint may be like. ``rambles``: the share of answers that are a loop or anything at all."""

    echo: float = 0.95
    rambles: float = 0.1
    names_words: float = 0.05
    rate: float = 20_000.0
    usage: bool = True
    jitter: float = 0.3
    empties: float = 0.0
    busy: float = 0.0
    buffered: bool = False
    caches: bool = False
    steady: bool = True
    keys: int = 4


class World(Struct):
    """One run in the making."""

    rng: random.Random
    temper: Temper
    planted: dict[str, tuple[str, ...]]
    exchanges: list[Exchange] = []
    now_s: float = 0.0
    cached: dict[str, str] = {}


Change = Callable[[World, Exchange], Exchange]
"""Makes a faulty answer out of a sound one."""

TENANTS = ("tenant-1", "tenant-2", "tenant-3", "tenant-4")
LIMIT = 2_000


def draw(seed: int, per_tenant: int = 6) -> dict[str, tuple[str, ...]]:
    """Give every tenant's markers; no word is drawn twice."""
    rng = random.Random(f"draw/{seed}")
    words = iter(rng.sample(WORDS, len(TENANTS) * per_tenant * 3))
    return {
        tenant: tuple(f"{next(words)} {next(words)} {next(words)} {rng.choice(DIGITS)}" for _ in range(per_tenant))
        for tenant in TENANTS
    }


def record(
    seed: int, temper: Temper = Temper(), change: Change | None = None, rungs: int = 24, prompts: int = 1
) -> Record:
    """Make one run's record."""
    world = World(random.Random(seed), temper, draw(seed), [], 0.0, {})
    for ask in _asks(world, rungs, prompts):
        exchange = _answer(world, ask)
        world.exchanges.append(exchange if change is None else change(world, exchange))
        world.now_s = exchange.ended_s + 0.001
    calibration = Calibration(limit_tokens=LIMIT, tokens_per_s=temper.rate, deterministic=temper.steady, echoes=(8, 8))
    seeds = [each.ask for each in world.exchanges if each.ask.phase is Phase.SEED]
    texts = {tenant: tuple(ask.prompt for ask in seeds if ask.tenant == tenant) for tenant in TENANTS}
    return Record(
        calibration=calibration,
        exchanges=tuple(world.exchanges),
        planted=world.planted,
        texts=texts,
        words=LISTS,
        target=Target(
            url="http://127.0.0.1:1/v1",
            model="fake",
            keys={tenant: f"KEY_{min(number, temper.keys - 1)}" for number, tenant in enumerate(TENANTS)},
        ),
        seed=seed,
        wall_s=world.now_s,
    )


# ---- what is asked ---------------------------------------------------------------------------------------------------


SHARES = (0.34, 0.42, 0.5, 0.57, 0.65, 0.72, 0.8, 0.88, 0.93, 0.97, 1.0, 1.02, 1.5)
PLAN = (
    *((Phase.CALIBRATE, "control", number % 2, 56 + number, 12) for number in range(10)),
    *((Phase.CALIBRATE, "rate", 0, int(LIMIT * share), 4) for share in (0.12, 0.22, 0.33) * 2),
    *((Phase.CALIBRATE, "bisect", 1, tokens, 8) for tokens in (2 * LIMIT, LIMIT + 1, LIMIT)),
    *((Phase.SEED, "natural" if number % 3 else "repetitive", number % 4, LIMIT - 40, 32) for number in range(12)),
)
DISTURBED = (
    *((Phase.ABORT, role, number % 4, 600, 32) for number in range(6) for role in ("left", "reuse")),
    *((Phase.PRESSURE, "loaded", number % 4, 500, 128) for number in range(12)),
    *((Phase.PREFIX, role, number % 4, 800, 32) for number in range(10) for role in ("own", "foreign", "control")),
)
"""(phase, role, which tenant, tokens, most tokens of the answer)."""


def _asks(world: World, rungs: int, prompts: int) -> list[Ask]:
    ladder = [
        (Phase.OVERSIZE, "ladder", number % 4, int(LIMIT * SHARES[number % len(SHARES)]), 32) for number in range(rungs)
    ]
    found = [_ask(world, number, *line) for number, line in enumerate((*PLAN, *ladder, *DISTURBED), 1)]
    for prompt in range(prompts):
        ask = _ask(world, prompt, Phase.REPLAY, "alone", prompt % 4, 300, 48)
        for role in ("alone", "loaded", "loaded", "alone", "alone"):
            found.append(replace(ask, number=len(found) + 1, role=role, group=f"load-{prompt}"))
    prompt_again = _ask(world, 999, Phase.REPLAY, "alone", 0, 300, 48)
    for role in world.rng.sample(["after-b", "after-c"] * 10, 20):
        found.append(_ask(world, len(found) + 1, Phase.REPLAY, "before", 1 if role == "after-b" else 2, 300, 32))
        found.append(replace(prompt_again, number=len(found) + 1, role=role, group="aba"))
    return found


def _ask(world: World, number: int, phase: Phase, role: str, tenant: int, tokens: int, max_tokens: int) -> Ask:
    own = world.planted[TENANTS[tenant]]
    marker = own[number % len(own)]
    natural = role == "natural"
    lines = [f"A clerk wrote to client {each} about a letter. " for each in own] if natural else [f"- {marker}\n"]
    return Ask(
        number=number,
        tenant=TENANTS[tenant],
        phase=phase,
        role=role,
        prompt=f"#{number:06}\n" + "".join(lines * max(2, tokens // 8 // len(lines))),
        max_tokens=max_tokens,
        num_tokens=tokens,
        own=own if natural else (marker,),
        echo=() if role == "bisect" else (marker,),
        leave=1 if role == "left" else None,
    )


# ---- what a sound endpoint answers -----------------------------------------------------------------------------------


def _answer(world: World, ask: Ask) -> Exchange:
    temper, rng, sent = world.temper, world.rng, world.now_s
    if rng.random() < temper.busy:
        return Exchange(ask=ask, sent_s=sent, ended_s=sent + 0.1, status=429, trouble=Trouble.LIMITED)
    if (ask.num_tokens or 0) > LIMIT:
        return Exchange(
            ask=ask, sent_s=sent, ended_s=sent + 0.02, status=400, trouble=Trouble.REFUSED,
            message=f"maximum context length is {LIMIT} tokens", limit_tokens=LIMIT,
        )  # fmt: skip
    text = world.cached.get(ask.prompt) if temper.caches or temper.steady else None
    hit = temper.caches and text is not None
    text = says(world, ask) if text is None else text
    world.cached[ask.prompt] = text
    wait = 0.02 + (0.0 if hit else (ask.num_tokens or 0) / temper.rate) * (1 + temper.jitter * rng.random())
    left = ask.leave is not None
    return Exchange(
        ask=ask,
        sent_s=sent,
        first_s=None if temper.buffered else sent + wait,
        ended_s=sent + wait + 0.1,
        status=200,
        text=text[:8] if left else text,
        finish_reason=None if left else "length",
        prompt_tokens=ask.num_tokens if temper.usage and not left else None,
        completion_tokens=len(text.split()) if temper.usage and not left else None,
        trouble=Trouble.LEFT if left else None,
        num_pieces=8,
    )


def says(world: World, ask: Ask) -> str:
    """Give what a small model may say: mostly its marker again, else a loop, or words of all kinds."""
    rng, temper = world.rng, world.temper
    if rng.random() < temper.empties:
        return ""
    words = [rng.choice(COMMON) for _ in range(ask.max_tokens)]
    if rng.random() < temper.names_words:
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        words.append(rng.choice(DIGITS))
    if ask.echo and rng.random() < temper.echo:
        words[: len(words) // 2] = (ask.echo[0] + " ").split() * (len(words) // 4)
    elif rng.random() < temper.rambles:
        words = [rng.choice(COMMON)] * ask.max_tokens
    return " ".join(words)
