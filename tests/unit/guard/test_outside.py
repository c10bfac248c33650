"""A pair counts as guarded only where both roles say so, with one key."""

import pytest

from kvfence.evidence.fetch import Answer
from kvfence.guard.outside import Checked, State, check

LINE = 'kvfence:guard_active{{role="{role}",mode="{mode}",key_id="{key}",version="1",pid="{pid}"}} 1.0\n'


def metrics(role: str, mode: str = "enforce", key: str = "0a1b2c3d", pid: int = 1) -> bytes:
    """Give what a worker with a guard answers, among what it answers besides."""
    head = "# HELP sglang:token_usage Usage\n# TYPE sglang:token_usage gauge\nsglang:token_usage 0.1\n"
    return (head + LINE.format(role=role, mode=mode, key=key, pid=pid)).encode()


def look(bodies: dict[str, bytes | int]) -> Checked:
    """Check workers that answer with a body, or with a status alone."""

    def fetch(url: str) -> Answer:
        found = bodies[url.removesuffix("/metrics")]
        return Answer(url, 200, found) if isinstance(found, bytes) else Answer(url, found)

    return check(list(bodies), fetch)


def test_a_pair_with_one_key_is_guarded() -> None:
    """Both roles, one key, both enforcing: nothing to say. A worker of several processes is said once."""
    twice = metrics("decode") + LINE.format(role="decode", mode="enforce", key="0a1b2c3d", pid=2).encode()
    found = look({"http://p": metrics("prefill"), "http://d": twice})
    assert found.problems == ()
    assert [one.state for one in found.seen] == [State.ENFORCING] * 2 or len(found.seen) == 3


def test_a_pair_of_vllm_says_it_in_the_same_words() -> None:
    """Among labels of its own, on a page with counts of its own."""
    line = (
        'kvfence:guard_active{{engine="0",model_name="smol",role="{role}",mode="enforce",key_id="0a1b2c3d",'
        'version="1"}} 1.0\n'
        'vllm:num_requests_running{{engine="0",model_name="smol"}} 0.0\n'
    )
    found = look({f"http://{role}": line.format(role=role).encode() for role in ("prefill", "decode")})
    assert found.problems == ()
    assert [(one.role, one.state) for one in found.seen] == [("prefill", State.ENFORCING), ("decode", State.ENFORCING)]


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ({"http://p": metrics("prefill"), "http://d": b"sglang:token_usage 0.1\n"}, "no guard there"),
        ({"http://p": metrics("prefill"), "http://d": metrics("decode", mode="observe")}, "refuses nothing"),
        ({"http://p": metrics("prefill"), "http://d": metrics("decode", key="ffffffff")}, "key ids differ"),
        ({"http://p": metrics("prefill", key="insecure"), "http://d": metrics("decode", key="insecure")}, "a key"),
        ({"http://p": metrics("prefill")}, "no decode worker"),
    ],
)
def test_what_is_missing_is_said(bodies: dict[str, bytes | int], said: str) -> None:
    """Each way of not being guarded has its sentence."""
    found = look(bodies)
    assert any(said in problem for problem in found.problems)
    assert found.is_known


def test_workers_that_are_both_are_of_either_role() -> None:
    """vLLM has such workers: nothing is missing among them."""
    assert look({"http://a": metrics("both"), "http://b": metrics("both")}).problems == ()


@pytest.mark.parametrize("body", [404, b"\xff not metrics {"])
def test_a_worker_that_cannot_be_read_is_unknown(body: bytes | int) -> None:
    """No metrics is not the same as no guard, and never the same as a guard."""
    found = look({"http://p": metrics("prefill"), "http://d": body})
    assert not found.is_known
    assert found.problems
