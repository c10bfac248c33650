"""What is counted and said of a role's limits, of a pair's, and of strangers."""

import pytest

from kvfence.guard.sglang.sockets import MAGIC
from tests.unit.guard.sglang.parts import Req
from tests.unit.guard.sglang.standin import Pair, Side


def counted(side: Side, guard: str, answer: str) -> float:
    """Give how often a guard gave an answer at one role."""
    labels = {"role": side.role, "guard": guard, "answer": answer}
    return side.wiring._registry.get_sample_value("kvfence:guard_decisions_total", labels) or 0  # type: ignore[union-attr]


def test_a_pool_below_the_context_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Each role names both numbers and starts: what does not fit is refused one by one."""
    pair = Pair({"context": 4096}, {"context": 64})
    assert (counted(pair.prefill, "fits", "warn"), counted(pair.decode, "fits", "warn")) == (1, 0)
    assert "a pool of 64 tokens does not hold a prompt of the context's 4096" in caplog.text


def test_a_pair_with_other_limits_says_so_once_for_each_peer(caplog: pytest.LogCaptureFixture) -> None:
    """Contexts that differ, and a pool that does not hold what the other role lets in, at the first handshake."""
    pair = Pair({"context": 64}, {"context": 128})
    caplog.clear()
    for room in (7, 8):
        pair.offer(Req(room, 12))
        pair.decode.connection_pool.clear()  # the next request introduces decode again
    assert caplog.text.count("contexts differ: 64 tokens here, 128 there") == 1
    assert caplog.text.count("contexts differ: 128 tokens here, 64 there") == 1
    assert caplog.text.count("the other role's pool of 64 tokens is below the context of 128") == 2


def test_strangers_are_all_counted_and_seldom_said(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reaches the port can send as many messages as he likes; they fill no disk."""
    pair = Pair()
    pair.prefill.inbox.extend([MAGIC, b"mac", b"body"] for _ in range(50))
    pair.prefill.pump()
    assert counted(pair.prefill, "peer-is-current", "refuse") == 50
    assert caplog.text.count("not by a holder of the key") == 1
