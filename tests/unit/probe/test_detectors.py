"""Every detector finds its own fault, nobody else does, and a sound endpoint of any temper is called nothing."""

import tracemalloc

import pytest
from msgspec.structs import replace

from kvfence.probe.detectors import ALL, empty_answer, foreign_passage, over_limit
from kvfence.probe.detectors import prompt_tokens as prompt_tokens_
from kvfence.probe.exchange import Phase, Record, Trouble
from kvfence.probe.finding import Finding, Severity
from tests.unit.probe.endpoints import TENANTS, Temper, record
from tests.unit.probe.faults import FAULTS

RUNGS = 52

TEMPERS = {
    "plain": Temper(),
    "rambles": Temper(rambles=1.0, echo=0.55),
    "deaf": Temper(echo=0.0, rambles=0.5),
    "full of rare words": Temper(names_words=1.0),
    "not deterministic": Temper(steady=False),
    "slow and uneven": Temper(rate=500.0, jitter=3.0),
    "no usage": Temper(usage=False),
    "a buffering proxy": Temper(buffered=True),
    "cached replies": Temper(caches=True),
    "busy": Temper(busy=0.3),
    "sometimes empty": Temper(empties=0.1),
    "one key": Temper(keys=1),
}


def accusations(made: Record) -> list[Finding]:
    """Give what all detectors say beyond notes."""
    return [found for each in ALL for found in each.look(made) if found.severity is not Severity.NOTE]


def test_there_is_a_fault_for_every_detector() -> None:
    """A detector without a fault of its own is not shown to be needed."""
    assert set(FAULTS) == {each.name for each in ALL}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_detector_and_missed_without_it(name: str) -> None:
    """With all detectors on it is found; with this one away nothing accuses: each looks by itself."""
    found = accusations(record(7, change=FAULTS[name], rungs=RUNGS, prompts=14))
    assert {each.detector for each in found} == {name}
    assert all(each.p is None or each.p <= (each.limit or 0) for each in found)
    assert all(each.sights for each in found)


@pytest.mark.parametrize("name", ["foreign-marker", "foreign-passage"])
def test_foreign_text_is_a_leak(name: str) -> None:
    """The two detectors of text say LEAK, and whose text it is."""
    (found,) = accusations(record(7, change=FAULTS[name], rungs=RUNGS))
    assert found.severity is Severity.LEAK
    assert {each.of for each in found.sights} <= set(record(7).planted)
    assert all(each.of != each.exchange.ask.tenant for each in found.sights)


def test_a_foreign_passage_in_headers_is_found_there() -> None:
    """What stood in answers stands in values of headers instead: the same finding, told of the headers."""
    made = record(7, change=FAULTS["foreign-passage"], rungs=RUNGS)
    moved = tuple(
        replace(each, text="so", headers=each.text) if each.ask.phase is Phase.OVERSIZE else each
        for each in made.exchanges
    )
    (found,) = foreign_passage.look(replace(made, exchanges=moved))
    assert found.severity is Severity.LEAK
    assert all(each.in_headers for each in found.sights)


def test_what_cannot_be_a_tenants_text_takes_no_memory() -> None:
    """Of answers full of markers' words only passages shaped as a tenant's are kept: 0.2 MB an answer else."""
    made = record(1)
    words = [word for marker in made.planted[TENANTS[0]] for word in marker.split()]
    noisy = tuple(
        replace(each, text=" ".join(f"{words[at % len(words)]} v{number}x{at}" for at in range(1_500)))
        for number, each in enumerate(made.exchanges[:40])
    )
    tracemalloc.start()
    try:
        foreign_passage.look(replace(made, exchanges=noisy))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("temper", TEMPERS.values(), ids=list(TEMPERS))
def test_a_sound_endpoint_is_accused_of_nothing(temper: Temper) -> None:
    """Small models that loop, refusals, cached replies, slow servers and proxies that hold back are all sound."""
    assert accusations(record(1, temper, rungs=30)) == []


def timed(*times: tuple[int, float]) -> Record:
    """Lone requests, one after the other: so many tokens, so long until the first token."""
    made = record(1)
    first = made.exchanges[0]
    exchanges = tuple(
        replace(
            first,
            ask=replace(first.ask, number=number, num_tokens=tokens, prompt=f"#{number:06} {'word ' * tokens}"),
            sent_s=10.0 * number,
            first_s=10.0 * number + ttft_s,
            ended_s=10.0 * number + ttft_s + 0.1,
        )
        for number, (tokens, ttft_s) in enumerate(times)
    )
    return replace(made, exchanges=exchanges)


QUICK = [(500, 0.06), (510, 0.06), (520, 0.06)]


@pytest.mark.parametrize(
    ("times", "accused"),
    [
        ([(300, 0.24), (320, 0.26), (340, 0.27), *QUICK, (360, 0.28)], True),
        ([(300, 0.24), (320, 0.26), (340, 0.27), *QUICK], False),  # it has grown faster
        ([(300, 0.24), (320, 0.26), *QUICK, (340, 1.0)], False),  # others use the machine, too
        ([(300, 0.24), *QUICK, (320, 0.26)], False),  # two may have been unlucky
    ],
)
def test_speed_is_impossible_only_beside_even_times(times: list[tuple[int, float]], accused: bool) -> None:
    """Where lone prompts took unequal times a token the quick ones were lucky; where there are few nobody knows.

    And where none of the slow ones came later, the server may have got the machine for itself.
    """
    found = [each for each in accusations(timed(*times)) if each.detector == "impossible-speed"]
    assert bool(found) == accused


@pytest.mark.parametrize(
    ("words", "took_s", "accused"),
    [("it was too long", 20.0, True), ("it was too long", 9.0, False), ("", 20.0, False)],
)
def test_an_error_in_place_of_a_streamed_answer_is_a_refusal(words: str, took_s: float, accused: bool) -> None:
    """Its status was told before it; a connection that breaks is no refusal, for it has no words."""
    made = record(1)
    first = made.exchanges[0]
    late = replace(
        first, trouble=Trouble.BROKEN, text="", num_pieces=0, first_s=None, refusal=words, ended_s=first.sent_s + took_s
    )
    found = accusations(replace(made, exchanges=(late, *made.exchanges[1:])))
    assert [each.detector for each in found] == ["slow-refusal"] * accused


def counted(words: int, planned: int, prompt_tokens: int, whole: int = 1_000) -> list[Severity]:
    """What is said of a prompt of so many words, planned and counted so, beside one that was counted in full."""
    made = record(1)
    first = made.exchanges[0]
    exchanges = tuple(
        replace(
            first, ask=replace(first.ask, number=number, prompt="word " * size, num_tokens=plan), prompt_tokens=said
        )
        for number, (size, plan, said) in enumerate([(whole, whole, whole), (words, planned, prompt_tokens)])
    )
    return [each.severity for each in prompt_tokens_.look(replace(made, exchanges=exchanges))]


def test_a_count_accuses_only_where_the_words_say_so_too() -> None:
    """What was sent is no more than its words: a prompt that the ruler planned wrong accuses nobody."""
    assert counted(words=600, planned=600, prompt_tokens=1) == [Severity.SUSPECT]
    assert counted(words=21, planned=693, prompt_tokens=30) == []
    assert counted(words=693, planned=21, prompt_tokens=693) == []


def test_a_count_is_trusted_where_the_server_has_counted_twice_as_much() -> None:
    """A server that counts no prompt in full cannot count: a note, as of prompts that are cut short."""
    assert counted(words=600, planned=600, prompt_tokens=100, whole=150) == [Severity.NOTE]
    assert counted(words=600, planned=600, prompt_tokens=400) == [Severity.NOTE]


def test_a_refused_prompt_that_was_shorter_than_the_ruler_thinks_accuses_nobody() -> None:
    """Its length is a guess where calibration saw longer prompts answered."""
    made = record(1, rungs=30)
    refused = next(each for each in made.exchanges if each.trouble is not None and each.status == 400)
    guessed = replace(refused, ask=replace(refused.ask, num_tokens=1_500))
    exchanges = tuple(guessed if each is refused else each for each in made.exchanges)
    assert over_limit.look(replace(made, exchanges=exchanges)) == []


@pytest.mark.parametrize(
    ("status", "message", "accused"),
    [
        (400, "The prompt was filtered by the content policy.", False),
        (400, "This model's context length was exceeded.", True),
        (400, "status 400", True),
        (413, "no", True),
    ],
)
def test_a_refusal_names_a_limit_unless_it_says_something_else(status: int, message: str, accused: bool) -> None:
    """A filter of content refuses a short prompt, and longer ones are answered: that is no limit."""
    made = record(1, rungs=30)
    refused = next(each for each in made.exchanges if each.trouble is not None and each.status == 400)
    other = replace(refused, ask=replace(refused.ask, num_tokens=900), status=status, message=message)
    exchanges = tuple(other if each is refused else each for each in made.exchanges)
    unsearched = replace(made, exchanges=exchanges, calibration=replace(made.calibration, limit_tokens=None))
    assert bool(over_limit.look(unsearched)) == accused


def test_a_server_that_counts_what_it_computed_is_accused_of_nothing() -> None:
    """Of a prompt that it has seen, or whose beginning it has, some servers count the rest alone."""
    made = record(1, rungs=30)
    seen: set[str] = set()
    exchanges = []
    for each in made.exchanges:
        known = each.ask.phase is Phase.PREFIX or each.ask.prompt in seen
        seen.add(each.ask.prompt)
        exchanges.append(replace(each, prompt_tokens=1) if known and each.prompt_tokens else each)
    assert prompt_tokens_.look(replace(made, exchanges=tuple(exchanges))) == []
    assert exchanges != list(made.exchanges)


def test_an_answer_whose_tokens_nobody_sees_is_not_empty() -> None:
    """Where thoughts are hidden and nothing is counted, short answers end for their length without a word."""
    made = record(1, Temper(usage=False), rungs=52)
    for reason, accused in (("length", False), ("stop", True)):
        hidden = tuple(
            replace(each, text="", finish_reason=reason) if each.is_answer and each.ask.max_tokens < 64 else each
            for each in made.exchanges
        )
        found = empty_answer.look(replace(made, exchanges=hidden))
        assert any(each.severity is Severity.SUSPECT for each in found) == accused
