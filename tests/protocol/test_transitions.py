"""The tables of moves, pinned: who changes one, changes this picture with it."""

from collections.abc import Mapping
from enum import Enum

import pytest

from kvfence.core.errors import LocalProtocolError
from kvfence.core.ids import RequestId
from kvfence.core.pages import PageState
from kvfence.protocol.handoff import DecodeHandoff, GatewayHandoff, PrefillHandoff, advance
from kvfence.protocol.transitions import (
    DECODE_MOVES,
    GATEWAY_MOVES,
    PAGE_MOVES,
    PREFILL_MOVES,
    DecodePhase,
    GatewayPhase,
    PageMove,
    PrefillPhase,
)
from tests.protocol.conversation import D, P, attempt

PAGES = """
grant: free -> granted
seal: granted -> sealed
adopt: sealed -> adopted
release: adopted granted sealed -> free
revoke: adopted granted sealed -> quarantined
fence: quarantined -> free
"""
DECODE = """
waiting -> closed granted
granted -> revoked verifying
verifying -> revoked running
running -> closed
revoked -> closed
closed ->
"""
PREFILL = """
waiting -> closed failed running
running -> aborting closed failed sent
sent -> closed
failed -> aborting closed
aborting -> closed
closed ->
"""
GATEWAY = """
offered -> closed dispatched
dispatched -> closed streaming
streaming -> closed
closed ->
"""


def draw(moves: Mapping[Enum, frozenset[Enum]]) -> str:
    """Write a table of phases as text."""
    lines = [
        f"{phase.value} -> {' '.join(sorted(to.value for to in after))}".rstrip() for phase, after in moves.items()
    ]
    return "\n" + "\n".join(lines) + "\n"


def test_the_page_moves_are_these_six() -> None:
    """A page changes hands by grant, seal, adopt, release, revoke and fence alone."""
    lines = [f"{m.value}: {' '.join(sorted(s.value for s in f))} -> {to.value}" for m, (f, to) in PAGE_MOVES.items()]
    assert "\n" + "\n".join(lines) + "\n" == PAGES
    assert set(PAGE_MOVES) == set(PageMove)


def test_only_fence_leaves_quarantine() -> None:
    """No release, and no other move, takes a page out of quarantine."""
    assert [m for m, (leaves, _) in PAGE_MOVES.items() if PageState.QUARANTINED in leaves] == [PageMove.FENCE]


@pytest.mark.parametrize(
    ("moves", "drawn"), [(DECODE_MOVES, DECODE), (PREFILL_MOVES, PREFILL), (GATEWAY_MOVES, GATEWAY)]
)
def test_the_hand_off_moves_are_these(moves: Mapping[Enum, frozenset[Enum]], drawn: str) -> None:
    """Each role's hand-off goes along its table, and every phase has an entry."""
    assert draw(moves) == drawn
    assert set(moves) == set(type(next(iter(moves))))


def test_a_move_outside_the_table_is_our_own_bug() -> None:
    """Advancing a hand-off along no arrow raises, for each role and each pair of phases."""
    decode = DecodeHandoff(attempt(1), P, 4, 4)
    prefill = PrefillHandoff(attempt(1), D, 4)
    gateway = GatewayHandoff(attempt(1), RequestId("r"), P, D, 4, 4, 1, attempt(1))
    with pytest.raises(LocalProtocolError, match="waiting -> running"):
        advance(decode, DecodePhase.RUNNING)
    with pytest.raises(LocalProtocolError, match="waiting -> sent"):
        advance(prefill, PrefillPhase.SENT)
    with pytest.raises(LocalProtocolError, match="offered -> streaming"):
        advance(gateway, GatewayPhase.STREAMING)
    with pytest.raises(LocalProtocolError):
        advance(decode, PrefillPhase.RUNNING)
