"""What a faulty endpoint does to an answer: one fault for each detector, made so that no other detector sees it."""

from msgspec.structs import replace

from kvfence.probe.exchange import Exchange, Phase, Trouble
from tests.unit.probe.endpoints import COMMON, TENANTS, Change, World

LONG = 1_200


def foreign_marker(world: World, exchange: Exchange) -> Exchange:
    """Three answers end with a whole marker of tenant 4."""
    ask = exchange.ask
    if ask.phase is Phase.OVERSIZE and exchange.is_answer and ask.tenant == TENANTS[0]:
        return replace(exchange, text=f"{exchange.text} {world.planted[TENANTS[3]][ask.number % 3]}")
    return exchange


def foreign_passage(world: World, exchange: Exchange) -> Exchange:
    """Answers hold what stands round one word of another tenant's markers, and never two words of one."""
    ask = exchange.ask
    if ask.phase is Phase.OVERSIZE and exchange.is_answer:
        other = TENANTS[(TENANTS.index(ask.tenant) + 1) % 4]
        marker = world.planted[other][ask.number % 6]
        return replace(exchange, text=f"{exchange.text} so to client {marker.split()[0]} or what")
    return exchange


def amnesia(world: World, exchange: Exchange) -> Exchange:
    """Long prompts are answered with something else."""
    words = " ".join(world.rng.choice(COMMON) for _ in range(24))
    long = exchange.is_answer and (exchange.ask.num_tokens or 0) >= LONG
    return replace(exchange, text=words) if long else exchange


def dependence(world: World, exchange: Exchange) -> Exchange:
    """The answer goes with the tenant that asked before."""
    added = {"after-b": " this", "after-c": " that"}.get(exchange.ask.role)
    return replace(exchange, text=exchange.text + added) if added and exchange.is_answer else exchange


def impossible_speed(world: World, exchange: Exchange) -> Exchange:
    """Long prompts are answered before they can have been computed."""
    return replace(exchange, first_s=exchange.sent_s + 0.004) if _is_long(exchange) else exchange


def prompt_tokens(world: World, exchange: Exchange) -> Exchange:
    """Usage counts a placeholder."""
    return replace(exchange, prompt_tokens=1) if _is_long(exchange) else exchange


def over_limit(world: World, exchange: Exchange) -> Exchange:
    """What the limit refuses is now and then answered."""
    ask = exchange.ask
    if (
        ask.phase is Phase.OVERSIZE
        and exchange.trouble is Trouble.REFUSED
        and ask.num_tokens
        and ask.num_tokens > 2_500
    ):
        end_s = exchange.sent_s + 0.3
        return replace(
            exchange, status=200, trouble=None, message="", text=f"{ask.echo[0]} and so", ended_s=end_s,
            finish_reason="stop", prompt_tokens=ask.num_tokens,
        )  # fmt: skip
    return exchange


def empty_answer(world: World, exchange: Exchange) -> Exchange:
    """Long prompts get 200 and nothing."""
    emptied = replace(exchange, text="", completion_tokens=0, first_s=None, finish_reason="stop")
    return emptied if _is_long(exchange) else exchange


def repetition(world: World, exchange: Exchange) -> Exchange:
    """Under load every answer is one word over and over."""
    looped = exchange.ask.phase is Phase.REPLAY and exchange.ask.role == "loaded" and exchange.is_answer
    return replace(exchange, text=f"{exchange.ask.echo[0]} " + "so " * 40) if looped else exchange


def garbled_echo(world: World, exchange: Exchange) -> Exchange:
    """The second of a prompt's answers, asked alone, has a letter of its marker wrong."""
    ask = exchange.ask
    before = sum((each.ask.prompt, each.ask.role) == (ask.prompt, "alone") for each in world.exchanges)
    if ask.phase is Phase.REPLAY and ask.role == "alone" and before == 1 and exchange.is_answer:
        word = max(ask.echo[0].split(), key=len)
        return replace(exchange, text=exchange.text.replace(word, word[:-1] + "q", 1))
    return exchange


def slow_refusal(world: World, exchange: Exchange) -> Exchange:
    """Whoever refuses waits first."""
    refused = exchange.trouble is Trouble.REFUSED
    return replace(exchange, ended_s=exchange.sent_s + 20) if refused else exchange


def late_error(world: World, exchange: Exchange) -> Exchange:
    """Long answers break off."""
    broken = replace(exchange, trouble=Trouble.BROKEN, text=exchange.text[:60], finish_reason=None)
    return broken if _is_long(exchange) else exchange


def shared_prefix(world: World, exchange: Exchange) -> Exchange:
    """What another tenant sent is cached for everybody."""
    if exchange.ask.phase is Phase.PREFIX and exchange.ask.role in ("own", "foreign") and exchange.first_s:
        return replace(exchange, first_s=exchange.sent_s + 0.022 + world.rng.random() / 500)
    return exchange


def _is_long(exchange: Exchange) -> bool:
    ask = exchange.ask
    return ask.phase is Phase.OVERSIZE and exchange.is_answer and (ask.num_tokens or 0) >= LONG


FAULTS: dict[str, Change] = {
    "foreign-marker": foreign_marker,
    "foreign-passage": foreign_passage,
    "amnesia": amnesia,
    "depends-on-others": dependence,
    "garbled-echo": garbled_echo,
    "impossible-speed": impossible_speed,
    "prompt-tokens": prompt_tokens,
    "over-limit": over_limit,
    "empty-answer": empty_answer,
    "repetition": repetition,
    "slow-refusal": slow_refusal,
    "late-error": late_error,
    "shared-prefix": shared_prefix,
}
"""By the detector that is for it."""
