"""One canary and everything that can go wrong on its way, each by its name."""

import asyncio
import gzip
from typing import Any

import pytest

from kvfence.probe import client as client_module
from kvfence.probe.client import Client, Heard, Patience, retry_after_of
from kvfence.probe.door import Api, base_url_of
from kvfence.probe.exchange import Ask, Exchange, Phase, Trouble
from tests.unit.probe.fakes import Fake, Seen, Wire, delta, door_to, piece, usage


def ask_of(**more: Any) -> Ask:
    """An ask with the least in it."""
    given = {"number": 1, "tenant": "tenant-1", "phase": Phase.SEED, "prompt": "say it", "max_tokens": 4}
    return Ask(**{**given, **more})


async def heard(fake: Fake, ask: Ask | None = None, patience: Patience = Patience(5.0), **more: Any) -> Exchange:
    """What one canary to a fake is answered."""
    async with Client(door_to(fake, **more), 4) as client:
        found: Heard = await client.ask(ask or ask_of(), patience)
        return found.exchange


async def trickle(_: Seen, wire: Wire) -> None:
    """Answer without an end."""
    await wire.head(200, {"content-type": "text/event-stream"})
    while True:
        await wire.send(b'data: {"choices": [{"text": "a"}]}\n\n')
        await asyncio.sleep(0.005)


async def test_a_stream_is_heard_whole() -> None:
    """Text, times, the reason of the end and what was counted stand in the exchange."""
    async with Fake(lambda _, wire: wire.events(piece("a"), piece(" b"), piece("", "stop"), usage(7, 2))) as fake:
        found = await heard(fake)
    assert (found.text, found.status, found.finish_reason, found.trouble) == ("a b", 200, "stop", None)
    assert (found.prompt_tokens, found.completion_tokens, found.num_pieces) == (7, 2, 2)
    assert found.first_s is not None
    assert found.sent_s < found.first_s < found.ended_s


async def test_reasoning_and_calls_stand_aside() -> None:
    """What a model thinks and calls is kept, and is no part of the answer."""
    call = [{"function": {"name": "look", "arguments": '{"a": 1}'}}]
    frames = [delta(reasoning_content="hm "), delta(tool_calls=call), delta(content="yes"), delta("stop")]
    async with Fake(lambda _, wire: wire.events(*frames)) as fake:
        found = await heard(fake, api=Api.CHAT)
    assert found.text == "yes"
    assert found.aside == 'hm look{"a": 1}'


@pytest.mark.parametrize("name", ["seed", "stream_options", "logprobs", "temperature"])
async def test_a_refused_field_is_left_out_once_and_for_all(name: str) -> None:
    """A field that is refused by name is tried once; the next canary goes without it at once."""

    async def handler(seen: Seen, wire: Wire) -> None:
        if name in seen.body:
            await wire.answer(400, {"error": {"message": f"Unrecognized request argument: {name}"}})
        else:
            await wire.events(piece("a", "stop"))

    async with Fake(handler) as fake, Client(door_to(fake), 4) as client:
        for _ in range(2):
            found = await client.ask(ask_of(seed=1, logprobs=True), Patience(5.0))
            assert found.exchange.text == "a"
    assert [name in seen.body for seen in fake.seen] == [True, False, False]


async def test_the_newer_name_of_the_bound_is_taken() -> None:
    """A server that wants max_completion_tokens gets it."""

    async def handler(seen: Seen, wire: Wire) -> None:
        if "max_tokens" in seen.body:
            await wire.answer(400, {"error": {"message": "use 'max_completion_tokens' instead"}})
        else:
            await wire.events(piece("a", "stop"))

    async with Fake(handler) as fake:
        assert (await heard(fake)).text == "a"
    assert fake.seen[-1].body["max_completion_tokens"] == 4


async def test_an_error_after_200_is_no_answer() -> None:
    """An error event ends the exchange as broken, with the limit that its words name."""
    words = "Input length (1024 tokens) exceeds the maximum allowed length (1018 tokens)."
    async with Fake(lambda _, wire: wire.events({"error": {"message": words, "code": 400}})) as fake:
        found = await heard(fake)
    assert (found.status, found.trouble, found.limit_tokens) == (200, Trouble.BROKEN, 1018)


async def test_a_stream_that_stops_in_its_middle_is_broken() -> None:
    """Without an end, what came is kept and called broken; with a finish_reason the end marker may be missing."""
    async with Fake(lambda _, wire: wire.events(piece("a"), done=False)) as fake:
        found = await heard(fake)
    assert (found.text, found.trouble) == ("a", Trouble.BROKEN)
    async with Fake(lambda _, wire: wire.events(piece("a", "stop"), done=False)) as fake:
        assert (await heard(fake)).trouble is None


async def test_an_empty_200_is_an_answer_without_text() -> None:
    """A stream that ends well and says nothing is no trouble: what it means is judged elsewhere."""
    async with Fake(lambda _, wire: wire.events(piece("", "stop"))) as fake:
        found = await heard(fake)
    assert (found.status, found.text, found.first_s, found.trouble) == (200, "", None, None)


async def test_a_whole_answer_to_a_stream_has_no_first_time() -> None:
    """A 200 that is one JSON body is read, and says nothing of the first token."""
    body = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    async with Fake(lambda _, wire: wire.answer(200, body)) as fake:
        found = await heard(fake)
    assert (found.text, found.prompt_tokens, found.first_s, found.trouble) == ("a", 3, None, None)


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[1]", b"", b'{"ok": true}'])
async def test_a_200_that_is_no_answer_is_malformed(body: bytes) -> None:
    """A page, a list, nothing, or an object without choices."""
    async with Fake(lambda _, wire: wire.answer(200, body, content_type="text/html")) as fake:
        assert (await heard(fake)).trouble is Trouble.MALFORMED


async def test_pieces_held_back_by_a_proxy_have_no_first_time() -> None:
    """Where all pieces come at once after a wait, the first token's time is not known; otherwise it is."""
    frames = [piece(f" {number}") for number in range(6)] + [piece("", "stop")]

    def held(at_once: bool) -> Any:
        async def handler(_: Seen, wire: Wire) -> None:
            for _ in range(1 if at_once else 0):
                await asyncio.sleep(0.2)
            await wire.events(*frames, at_once=at_once, pause_s=0.02)

        return handler

    async with Fake(held(True)) as fake:
        found = await heard(fake)
    assert (found.first_s, found.num_pieces, found.trouble) == (None, 6, None)
    async with Fake(held(False)) as fake:
        assert (await heard(fake)).first_s is not None


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_busy_says_when_to_come_back(status: int) -> None:
    """Both statuses are one trouble, with the seconds that the server names."""
    async with Fake(lambda _, wire: wire.answer(status, {"error": {"message": "later"}}, retry_after="7")) as fake:
        found = await heard(fake)
    assert (found.trouble, found.retry_after_s, len(fake.seen)) == (Trouble.LIMITED, 7.0, 1)


def test_retry_after_is_seconds_or_a_date() -> None:
    """What cannot be read says nothing; a time that is past means now."""
    assert retry_after_of("1.5") == 1.5
    assert retry_after_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_of("soon") is None
    assert retry_after_of(None) is None


async def test_a_redirect_to_another_host_is_not_followed() -> None:
    """The key goes to the named origin alone: elsewhere nothing arrives."""
    other = Fake(lambda _, wire: wire.events(piece("a", "stop")))
    async with other, Fake(lambda _, wire: wire.answer(307, {}, location=other.url + "/completions")) as fake:
        found = await heard(fake)
    assert (found.trouble, found.status, other.seen) == (Trouble.REFUSED, 307, [])


async def test_a_redirect_within_the_origin_is_followed_once() -> None:
    """A path of the same server is."""

    async def handler(seen: Seen, wire: Wire) -> None:
        if seen.path.endswith("/elsewhere"):
            await wire.events(piece("a", "stop"))
        else:
            await wire.answer(308, {}, location="/elsewhere")

    async with Fake(handler) as fake:
        assert (await heard(fake)).text == "a"


async def test_an_endless_answer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many events nor one endless line is read for ever."""
    monkeypatch.setattr(client_module, "ANSWER_BYTES_MAX", 100_000)

    async def handler(_: Seen, wire: Wire) -> None:
        await wire.head(200, {"content-type": "text/event-stream"})
        while True:
            await wire.send(b"data: " + b"x" * 10_000)

    async with Fake(handler) as fake:
        assert (await heard(fake)).trouble is Trouble.MALFORMED


async def test_an_endless_answer_is_bounded_in_time() -> None:
    """A stream that trickles on ends with the patience; so does a server that says nothing."""

    async with Fake(trickle) as fake:
        assert (await heard(fake, patience=Patience(0.3))).trouble is Trouble.BROKEN

    async def silent(_: Seen, __: Wire) -> None:
        await asyncio.Event().wait()

    async with Fake(silent) as fake:
        found = await heard(fake, patience=Patience(0.2))
    assert (found.trouble, found.status) == (Trouble.UNREACHABLE, None)


async def test_tls_that_fails_is_named() -> None:
    """A server that does not speak TLS, or shows a certificate that nobody vouches for, is no answer."""
    async with Fake(lambda _, wire: wire.answer(200, {})) as fake:
        fake.url = fake.url.replace("http:", "https:")
        found = await heard(fake)
    assert found.trouble is Trouble.UNREACHABLE
    assert found.message.startswith("TLS: ")


async def test_nobody_there_is_unreachable() -> None:
    """A port that nobody listens on."""
    async with Fake(lambda _, wire: wire.answer(200, {})) as fake:
        url = fake.url
    fake.url = url
    found = await heard(fake)
    assert (found.trouble, found.status) == (Trouble.UNREACHABLE, None)


async def test_a_packed_body_is_refused() -> None:
    """Plain was asked for: a packed one may be a bomb."""
    body = gzip.compress(b'{"choices": []}')
    async with Fake(lambda _, wire: wire.answer(200, body, content_encoding="gzip")) as fake:
        found = await heard(fake)
    assert (found.trouble, fake.seen[0].headers["accept-encoding"]) == (Trouble.MALFORMED, "identity")


async def test_bytes_that_are_no_text_do_no_harm() -> None:
    """What cannot be decoded is marked, and the rest is read."""

    async def handler(_: Seen, wire: Wire) -> None:
        await wire.head(200, {"content-type": "text/event-stream; charset=utf-8"})
        await wire.send(b'data: {"choices": [{"text": "a\xff\xfeb", "finish_reason": "stop"}]}\n\n')
        await wire.end()

    async with Fake(handler) as fake:
        assert (await heard(fake)).text == "a\ufffd\ufffdb"


async def test_a_client_that_leaves_is_seen_to_leave() -> None:
    """After so many pieces the connection is closed: the server hears of it, and it is no trouble of the server's."""

    async with Fake(trickle) as fake:
        found = await heard(fake, ask_of(leave=2))
        async with asyncio.timeout(5):
            await fake.left.wait()
    assert (found.trouble, found.text) == (Trouble.LEFT, "aa")


async def test_a_client_leaves_before_the_first_token() -> None:
    """It goes after the time it was given, having heard nothing."""

    async def silent(_: Seen, __: Wire) -> None:
        await asyncio.Event().wait()

    async with Fake(silent) as fake:
        found = await heard(fake, ask_of(leave=0), Patience(5.0, leave_s=0.5))
    assert (found.trouble, found.text, len(fake.seen)) == (Trouble.LEFT, "", 1)


async def test_a_key_goes_into_one_header_and_into_no_text() -> None:
    """Each tenant's request carries its own key; a server that repeats it finds it taken out of its words."""

    async def handler(seen: Seen, wire: Wire) -> None:
        await wire.answer(401, {"error": {"message": f"wrong key: {seen.headers['authorization']}"}})

    async with Fake(handler) as fake:
        found = await heard(fake, ask_of(tenant="b"), keys={"a": "sk-first", "b": "sk-second"})
        shown = repr(door_to(fake, keys={"a": "sk-first"}))
    assert fake.seen[0].headers["authorization"] == "Bearer sk-second"
    assert "sk-" not in found.message + shown
    assert found.message == "wrong key: Bearer (key)"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/api/v3", "https://h/api/v3"),
    ],
)
def test_a_base_url_has_a_version(given: str, wanted: str) -> None:
    """Where none stands, /v1 is added."""
    assert base_url_of(given) == wanted
