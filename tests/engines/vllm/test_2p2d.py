"""Two prefills with two decodes, all guarded and enforcing: every pair of them, and a gateway before the four."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, product
from typing import Any

import cases
import pytest
import traces
from cases import CODE
from conftest import TRACES, fenced
from pair import Pair, Site, Sizes, Workers, complete, handed_off, prefilled, running, text_of
from test_gateway import KEYS, Door, standing
from test_guard import REFUSED, decisions, idle, refused

pytestmark = pytest.mark.timeout(2400)

PREFILLS, DECODES = ("prefill-0", "prefill-1"), ("decode-0", "decode-1")
SIZES = Sizes(blocks=128)
HONEST = 80
ASKED = 24
"""Through the gateway, each time."""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, site: Site, key: str) -> Iterator[Workers]:
    """Four workers with one key."""
    logs = tmp_path_factory.mktemp("four")
    with running(dict.fromkeys((*PREFILLS, *DECODES), fenced(site, "enforce", key, logs)), SIZES, logs) as workers:
        yield workers


@pytest.fixture(scope="module")
def door(four: Workers, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The gateway before the four."""
    prefills, decodes = [four.urls[name] for name in PREFILLS], [four.urls[name] for name in DECODES]
    with standing(site, tmp_path_factory.mktemp("gateway"), prefills, decodes) as found:
        yield found


def pairs(four: Workers) -> list[Pair]:
    """Give every prefill with every decode."""
    return [four.pair(*names) for names in product(PREFILLS, DECODES)]


def verified(four: Workers) -> float:
    """Count over both decodes."""
    return sum(decisions(four.urls[name], "pass", guard="digest-matches") for name in DECODES)


def refusals(four: Workers) -> float:
    """Count over all four."""
    return sum(decisions(url, "refuse") for url in four.urls.values())


def test_every_decode_reads_from_every_prefill(four: Workers) -> None:
    """Four pairs, each verified and answered as prefill alone goes on."""
    for number, pair in enumerate(pairs(four)):
        before = decisions(pair.decode, "pass", guard="digest-matches")
        assert cases.as_alone(pair, f"pair {number}", 4) >= 3
        assert decisions(pair.decode, "pass", guard="digest-matches") == before + 4
    assert refusals(four) == 0


def test_honest_requests_are_not_refused(four: Workers) -> None:
    """Eighty, eight at once, over all pairs in turn: all verified, none refused."""
    before, turns = verified(four), cycle(pairs(four))

    def one(each: tuple[int, Pair]) -> Any:
        number, pair = each
        words = " ".join(f"item {number} {n}" for n in range(4 + number % 23))
        return handed_off(pair, f"List {number}: {words}. Next:", 6)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, zip(range(HONEST), turns, strict=False)))
    assert {answer.status_code for answer in answers} == {200}
    assert (verified(four), refusals(four)) == (before + HONEST, 0)


def test_a_hand_off_of_the_other_prefill_is_read_from_its_own(four: Workers) -> None:
    """Its open parameters are swapped for the other's on the way: what is sealed is used."""
    one, other = four.pair("prefill-0", "decode-0"), four.pair("prefill-1", "decode-0")
    prompt = cases.secret("swapped")
    swapped = {**prefilled(other, cases.secret("another")), "kvfence": prefilled(one, prompt)["kvfence"]}
    assert text_of(complete(one.decode, prompt, 8, swapped)) == text_of(complete(one.prefill, prompt, 8))


@pytest.mark.parametrize("decode", DECODES)
def test_a_forged_reference_is_refused_at_each_decode(four: Workers, decode: str) -> None:
    """Whichever prefill sealed it."""
    for prefill in PREFILLS:
        pair = four.pair(prefill, decode)
        refused(pair, "stamp-at-adopt", partial(cases.forged, pair, f"{prefill} {decode}"))


def test_a_hand_off_is_good_once_at_each_decode(four: Workers) -> None:
    """Its second use at one decode is refused; at the other it gives that prompt's own answer, or an error."""
    one, other = four.pair("prefill-0", "decode-0"), four.pair("prefill-0", "decode-1")
    prompt = cases.secret("twice")
    params = prefilled(one, prompt)
    first = text_of(complete(one.decode, prompt, 4, dict(params)))
    refused(one, "attempt-is-current", lambda: complete(one.decode, prompt, 4, dict(params)))
    again = complete(other.decode, prompt, 4, dict(params))
    assert again.status_code == REFUSED or text_of(again) == first


def test_one_prefill_killed_between_leaves_the_other_to_both(four: Workers) -> None:
    """Its hand-offs end as errors at each decode, the other's go on, and its next life's are taken."""
    prompts = {name: cases.secret(f"killed {name}") for name in DECODES}
    lost = {name: prefilled(four.pair("prefill-0", name), prompt) for name, prompt in prompts.items()}
    kept = {name: prefilled(four.pair("prefill-1", name), prompt) for name, prompt in prompts.items()}
    four.held.end("prefill-0")
    for name, prompt in prompts.items():
        assert complete(four.urls[name], prompt, 8, lost[name]).status_code == REFUSED
        assert CODE[:2] in text_of(complete(four.urls[name], prompt, 8, kept[name]))
    four.restart(**{"prefill-0": None})
    for pair in pairs(four):
        assert cases.honest(pair, "next life").status_code == 200
        assert idle(pair, SIZES.blocks)


def test_a_gateway_gives_work_to_all_four(four: Workers, door: Door) -> None:
    """Two tenants, eight at once: all answered from verified hand-offs, at both decodes."""
    before = {name: decisions(four.urls[name], "pass", guard="digest-matches") for name in DECODES}
    assert asked(door, "all") == [200] * ASKED
    more = [decisions(four.urls[name], "pass", guard="digest-matches") - before[name] for name in DECODES]
    assert sum(more) >= ASKED
    assert min(more) > 0


def test_a_gateway_goes_on_without_one_of_each(four: Workers, door: Door) -> None:
    """A prefill, and then a decode, are gone: every request is answered by those that are left."""
    for name in ("prefill-1", "decode-0"):
        four.held.end(name)
        assert asked(door, name) == [200] * ASKED


def test_the_traces_conform(four: Workers) -> None:
    """Of three lives of prefill and two of decode."""
    found = traces.rulings(four.held.logs / TRACES)
    assert sorted(found) == [("decode", "conforming")] * 2 + [("prefill", "conforming")] * 3


def asked(door: Door, what: str) -> list[int]:
    """Ask as two tenants; give the statuses."""
    given = [
        (tenant, f"Note {n} of {tenant} ({what}): list river stone.") for n in range(ASKED // 2) for tenant in KEYS
    ]
    with ThreadPoolExecutor(8) as pool:
        return [answer.status_code for answer in pool.map(lambda each: door.ask(*each), given)]
