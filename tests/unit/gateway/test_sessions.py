import pytest

from kvfence.core.ids import RequestId, TenantId
from kvfence.core.request import Request, SamplingParams
from kvfence.gateway.pieces import Finish, Piece
from kvfence.gateway.responses import BROKEN_OFF, Failure
from kvfence.gateway.sessions import Choice, Reading, Session, StopScanner, TokenClock
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EndOut, TokensOut
from tests.unit.gateway.fakes import ByteStream, FakeGenerations, end, say


class Ticks:
    """Gathers times; its clock moves one second a look."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.inter: list[float] = []
        self.now = 0.0

    def first_token(self, elapsed_s: float) -> None:
        self.first.append(elapsed_s)

    def inter_token(self, elapsed_s: float) -> None:
        self.inter.append(elapsed_s)

    def clock(self) -> float:
        self.now += 1.0
        return self.now


def open_session(generations: FakeGenerations, stop: tuple[str, ...] = (), ticks: Ticks | None = None) -> Session:
    """Open a session of scripted generations."""
    ticks = ticks or Ticks()
    request = Request(RequestId("r"), TenantId("t"), (1, 2), 100, SamplingParams(), stop)
    choices = [Choice(0, request, Reading(ByteStream))]
    events = generations.generate_together([request])
    return Session(choices, events, TokenClock(ticks, 0.0, ticks.clock), generations.leave)


async def read_all(session: Session) -> tuple[str, Finish | Failure | None]:
    """Read a session to its one end."""
    text, last = "", None
    async for item in session.read(16):
        if isinstance(item, Piece):
            text += item.text
        else:
            assert last is None
            last = item
    return text, last


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "stopped"),
    [
        (["hello"], (), "hello", False),
        (["he", "ST", "OP", "x"], ("STOP",), "he", True),
        (["S", "T", "O", "P"], ("STOP",), "", True),
        (["STO", "RM"], ("STOP",), "STORM", False),
        (["aab"], ("ab",), "a", True),
        (["a", "bc"], ("abc", "b"), "a", True),
        (["abc"], ("abc", "b"), "a", True),
        (["xSTOPySTOP"], ("STOP",), "x", True),
    ],
)
def test_a_stop_string_ends_the_text_however_it_is_cut(pieces, stops, shown, stopped):
    """What is shown never holds a stop string or a piece of one, and the same wherever the text was cut."""
    scanner, seen, ended = StopScanner(stops), "", False
    for piece in pieces:
        text, ended = scanner.push(piece)
        seen += text
        if ended:
            break
    assert (seen + scanner.flush(), ended) == (shown, stopped)


async def test_characters_leave_whole():
    """A character whose bytes come in three tokens leaves as one piece."""
    generations = FakeGenerations(say("a€b"))
    session = open_session(generations)
    pieces = [item.text async for item in session.read(16) if isinstance(item, Piece)]
    assert [piece for piece in pieces if piece] == ["a", "€", "b"]
    assert session.clock.num_tokens == 5


async def test_a_stop_string_cancels_the_generation():
    """A stop string found here closes the generation upstream and the answer ends with stop."""
    generations = FakeGenerations(say("one STOP two"))
    assert await read_all(open_session(generations, ("STOP",))) == ("one ", Finish("stop"))
    assert (generations.num_open, generations.num_cancelled) == (0, 1)


async def test_held_back_text_is_shown_at_the_end():
    """The beginning of a stop string that never came is part of a full answer."""
    assert await read_all(open_session(FakeGenerations(say("so ST")), ("STOP",))) == ("so ST", Finish("stop"))


async def test_held_back_text_is_dropped_at_an_error():
    """An answer that a guard stopped shows nothing more, not even what was held back."""
    script = lambda request: [TokensOut(tuple(b"so ST")), EndOut(EndReason.STAMP_MISMATCH)]  # noqa: E731
    text, last = await read_all(open_session(FakeGenerations(script), ("STOP",)))
    assert text == "so "
    assert isinstance(last, Failure)
    assert last.code == "kv_integrity"


async def test_a_generation_that_breaks_off_is_an_error():
    """Without an end there is no full answer."""
    script = lambda request: [TokensOut(tuple(b"half"))]  # noqa: E731
    assert await read_all(open_session(FakeGenerations(script))) == ("half", BROKEN_OFF)


async def test_length_is_told_from_stop():
    """An answer that ran into max_tokens says length."""
    assert (await read_all(open_session(FakeGenerations(say("x" * 200)))))[1] == Finish("length")


async def test_a_refusal_carries_its_reason():
    """A full queue is a failure with a time to ask again."""
    _, last = await read_all(open_session(FakeGenerations(end(EndReason.QUEUE_FULL, 3))))
    assert isinstance(last, Failure)
    assert (last.status, last.retry_after_s) == (429, 3)


async def test_times_of_tokens_are_told_once_each():
    """The first token's time counts from arrival, each later one from the one before."""
    ticks = Ticks()
    await read_all(open_session(FakeGenerations(say("abc")), ticks=ticks))
    assert (ticks.first, ticks.inter) == ([1.0], [1.0, 1.0])


async def test_leaving_early_closes_the_generation():
    """A reader that stops reading cancels the generation."""
    generations = FakeGenerations(say("abc"))
    items = open_session(generations).read(16)
    await anext(items)
    await items.aclose()
    assert (generations.num_open, generations.num_cancelled) == (0, 1)


async def test_stop_strings_count_from_the_least_length_on():
    """Before min_tokens a stop string is text; after it, it ends the answer."""
    sampling = SamplingParams(min_tokens=5)
    request = Request(RequestId("r"), TenantId("t"), (1, 2), 100, sampling, ("ab",))
    generations, clock = FakeGenerations(say("ab ab cab d")), TokenClock(Ticks(), 0.0)
    events = generations.generate_together([request])
    session = Session([Choice(0, request, Reading(ByteStream))], events, clock, generations.leave)
    assert await read_all(session) == ("ab ab c", Finish("stop"))
