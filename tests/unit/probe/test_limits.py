"""The search for the longest prompt that is answered, on a server that is scripted."""

from collections.abc import Callable

import pytest

from kvfence.probe.exchange import Ask, Exchange, Phase, Trouble
from kvfence.probe.phases import limits
from kvfence.probe.phases.limits import Found, find_limit

LIMIT, NAMED = 1_460, 1_530


class Roomy:
    """A stage with room for every try."""

    def has_room(self, _requests: int, _tokens: int) -> bool:
        """Yes."""
        return True


def hangs(_tries: int, num_tokens: int) -> tuple[Trouble | None, float, int | None]:
    """Prompts above what it names are refused; those above what it has room for are never answered."""
    if num_tokens >= NAMED:
        return Trouble.REFUSED, 0.1, NAMED
    return (Trouble.UNREACHABLE, 60.0, None) if num_tokens > LIMIT else (None, 1.0, None)


def is_busy_meanwhile(tries: int, num_tokens: int) -> tuple[Trouble | None, float, int | None]:
    """The same, and its router sends everyone away for a while."""
    return (Trouble.LIMITED, 0.1, None) if tries in (4, 5, 6) else hangs(tries, num_tokens)


async def search(
    server: Callable[[int, int], tuple[Trouble | None, float, int | None]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Found, list[Exchange]]:
    """Search on a scripted server; give what was found and what was tried."""
    heard: list[Exchange] = []

    async def one(_stage: object, num_tokens: int, _wait_s: float) -> Exchange:
        trouble, took_s, named = server(len(heard), num_tokens)
        ask = Ask(number=len(heard), tenant="", phase=Phase.CALIBRATE, prompt="", max_tokens=8, num_tokens=num_tokens)
        heard.append(Exchange(ask=ask, sent_s=0.0, ended_s=took_s, trouble=trouble, limit_tokens=named))
        return heard[-1]

    monkeypatch.setattr(limits, "_try", one)
    return await find_limit(Roomy(), None), heard  # type: ignore[arg-type]


@pytest.mark.parametrize("server", [hangs, is_busy_meanwhile])
async def test_where_prompts_are_never_answered_the_search_ends_near_the_limit(
    server: Callable[[int, int], tuple[Trouble | None, float, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are waited for in vain, and who is sent away for load has learned nothing of the limit."""
    found, heard = await search(server, monkeypatch)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= LIMIT < found.high <= found.low * 1.06
    assert found.unanswered == found.high
    assert sum(each.trouble is Trouble.UNREACHABLE for each in heard) <= 3


async def test_where_refusals_are_quick_the_limit_is_found_to_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused at once costs little: the search goes on to its end."""
    found, _ = await search(lambda _, count: (Trouble.REFUSED if count > LIMIT else None, 0.1, None), monkeypatch)
    assert (found.limit, found.unanswered) == (LIMIT, None)
