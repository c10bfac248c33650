"""Any body at all: an answer below 500, and no text of the client's in any error, log or metric."""

import asyncio
import json
from contextlib import redirect_stderr
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.gateway.sessions import StopScanner
from tests.unit.gateway.fakes import Running, say

MARKER = "QUOKKA-7731"

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(MARKER),
    st.text(max_size=8).map(lambda text: text + MARKER),
    st.sampled_from(["toy", "user", "system", "text", ""]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["role", "content", "type", "text", MARKER]), inner, max_size=4),
    ),
    max_leaves=8,
)
NAMES = ["model", "prompt", "messages", "stream", "stream_options", "stop", "seed", "n", "tools", "max_tokens", MARKER]
wild = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", MARKER]), "content": values})
near = st.fixed_dictionaries(
    {"model": st.just("toy"), "prompt": values, "messages": st.lists(message, max_size=3)},
    optional={"stream": st.booleans(), "stop": values, "temperature": leaves, "top_p": leaves, "max_tokens": leaves},
)
bodies = st.one_of(
    wild.map(lambda body: json.dumps(body).encode()),
    near.map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=64).map(lambda raw: MARKER.encode() + raw),
    near.map(lambda body: json.dumps(body).encode()[:-2]),
)


async def post(running: Running, path: str, body: bytes) -> tuple[int, str]:
    """Post a body. Returns: the status, and all that can be seen from outside."""
    async with running.client() as client:
        response = await client.post(path, content=body, headers={"x-request-id": MARKER, "user-agent": MARKER})
        metrics = (await client.get("/metrics")).text
    return response.status_code, response.text + metrics + str(response.headers)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_any_body_is_answered_and_repeated_nowhere(path):
    """No body is a 500, and the marker in it is in no answer, header, metric or log."""

    @settings(max_examples=100, deadline=None)
    @given(body=bodies)
    def check(body: bytes) -> None:
        running, stderr = Running(say("fine")), StringIO()
        with redirect_stderr(stderr):
            status, shown = asyncio.run(post(running, path, body))
        assert status < 500
        assert MARKER not in shown + running.log.getvalue() + stderr.getvalue()

    check()


async def test_the_marker_would_be_found():
    """The same look finds the marker where a server does repeat it: in the name of its own model."""
    running = Running(say("fine"), model=MARKER)
    _, shown = await post(running, "/v1/completions", b'{"model":"toy","prompt":"x"}')
    assert MARKER in shown


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4).map(tuple),
    cuts=st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(text, stops, cuts):
    """However the text is cut, the same is shown as letter by letter, and it never holds a stop string."""

    def scan(pieces: list[str]) -> str:
        scanner, shown = StopScanner(stops), ""
        for piece in pieces:
            more, stopped = scanner.push(piece)
            shown += more
            if stopped:
                return shown
        return shown + scanner.flush()

    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    shown = scan(pieces)
    assert shown == scan(list(text))
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
