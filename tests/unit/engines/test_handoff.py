"""When tokens of decode may leave."""

from msgspec import Struct

from kvfence.engines.dialect import Heard, Said
from kvfence.engines.handoff import BROKE_OFF, MISCOUNTED, OTHER_TOKEN, Listener
from kvfence.protocol.messages import EndReason
from kvfence.runtime.generation import EngineWords, TokensOut


class Ear(Struct):
    """Hears what leaves."""

    heard: list[TokensOut] = []

    def hear(self, tokens: TokensOut) -> None:
        self.heard.append(tokens)


def piece(*token_ids: int, count: int | None = 5) -> Heard:
    """A piece of decode's answer."""
    return Heard(count, TokensOut(token_ids))


def test_tokens_wait_for_prefills_answer() -> None:
    """They are held in order, leave when it holds, and from then on at once; the cached tokens are said once."""
    ear = Ear()
    listener = Listener(5, ear.hear)
    assert listener.take(piece(1)) is None
    assert listener.take(piece(2, 3)) is None
    assert (ear.heard, listener.begun.is_set()) == ([], True)
    listener.release(Said(5, 1, num_cached=4))
    assert [each.token_ids for each in ear.heard] == [(1,), (2, 3)]
    assert listener.take(piece(4)) is None
    assert [each.num_cached for each in ear.heard] == [4, 0, 0]


def test_tokens_without_a_count_are_no_better_than_with_a_wrong_one() -> None:
    """What is not said is not equal."""
    listener = Listener(5, Ear().hear)
    assert listener.take(piece(1, count=None)) is MISCOUNTED
    assert listener.take(piece(1, count=1)) is MISCOUNTED
    assert listener.take(Heard(1)) is MISCOUNTED, "nor is a count without tokens"
    assert not listener.begun.is_set()


def test_a_first_token_that_prefill_did_not_choose_does_not_leave() -> None:
    """Whichever of the two is heard first."""
    ear = Ear()
    early, late = Listener(5, ear.hear), Listener(5, ear.hear)
    early.take(piece(7))
    assert not early.agrees(Said(5, 8))
    late.release(Said(5, 8))
    assert late.take(piece(7)) is OTHER_TOKEN
    assert ear.heard == []


def test_an_end_is_an_end_and_a_failure_keeps_the_engines_words() -> None:
    """As the engine's status says."""
    listener = Listener(5, Ear().hear)
    ended = listener.take(Heard(5, None, EndReason.LENGTH))
    assert ended is not None
    assert (ended.reason, ended.elsewhere) == (EndReason.LENGTH, False)
    refused = listener.take(Heard(None, None, EndReason.TRANSFER_FAILED, EngineWords(400, "too long")))
    assert refused is not None
    assert (refused.reason, refused.words) == (EndReason.REFUSED_AT_INTAKE, EngineWords(400, "too long"))
    assert listener.take(Heard(reason=EndReason.TRANSFER_FAILED)) is BROKE_OFF
