"""The detector judges what a server answers, here a fake one behind a transport: honest, leaking, refusing, broken."""

import json
from collections.abc import Callable

import httpx
import pytest

from kvfence.incident.client import Door, ask
from kvfence.incident.detector import Detector, Plan, Report
from kvfence.incident.workload import ASKER, Ask

DOOR = Door("http://fake", "toy", {ASKER: "key"})
OWN = ("amber", "basalt", "cedar")
CONTROL = Ask("control-1", ASKER, [1] * 40, 8, OWN)
OVERSIZE = (Ask("oversize-01", ASKER, [2] * 60, 12, OWN), Ask("oversize-02", ASKER, [2] * 60, 12, OWN, stream=False))
PLAN = Plan(DOOR, (CONTROL, CONTROL), (OVERSIZE,), {"tenant-01": ("Hugo", "Turner", "Lisbon")})

Reply = Callable[[dict[str, object]], httpx.Response]


def answer(body: dict[str, object], text: str, *, error: bool = False) -> httpx.Response:
    """Answer 200 as the gateway does, streamed or whole."""
    if not body["stream"]:
        return httpx.Response(200, json={"choices": [{"text": text}]})
    frames = [{"choices": [{"text": text}]}] + ([{"error": {"message": "broke off"}}] if error else [])
    lines = [f"data: {json.dumps(frame)}\n\n" for frame in frames]
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, text="".join([*lines, "data: [DONE]\n\n"])
    )


def is_oversize(body: dict[str, object]) -> bool:
    """Tell the prompts that do not fit."""
    prompt = body["prompt"]
    return isinstance(prompt, list) and len(prompt) == 60


async def report_on(reply: Reply) -> Report:
    """Let the detector ask a server that replies like this."""
    transport = httpx.MockTransport(lambda request: reply(json.loads(request.content)))
    async with httpx.AsyncClient(transport=transport, base_url=DOOR.url) as client:
        detector = Detector(PLAN, client)
        await detector.calibrate()
        assert await detector.send_next() == 2
        return await detector.report()


async def test_an_honest_server_raises_nothing() -> None:
    """Every answer repeats its own prompt's words: no alarm of any kind but, on a fake, speed."""
    report = await report_on(lambda body: answer(body, "copy: amber basalt"))
    assert report.controls_echo
    assert not any(judged.text or judged.amnesia or judged.status for judged in report.judged)


async def test_foreign_text_and_amnesia_are_told_apart() -> None:
    """A leaking answer has another's marker and no trace of its own prompt."""
    report = await report_on(lambda body: answer(body, "- Hugo Turner" if is_oversize(body) else "amber"))
    assert [judged.exact for judged in report.judged] == [(("tenant-01", "Hugo"), ("tenant-01", "Turner"))] * 2
    assert all(judged.amnesia for judged in report.judged)


async def test_garbled_foreign_text_is_found() -> None:
    """One wrong letter does not hide a marker."""
    report = await report_on(lambda body: answer(body, "the Turmer file" if is_oversize(body) else "amber"))
    assert all(judged.fuzzy and not judged.exact for judged in report.judged)


async def test_unreadable_answers_are_amnesia() -> None:
    """Garbage names nobody, yet shows that the prompt was not read."""
    report = await report_on(lambda body: answer(body, "--------" if is_oversize(body) else "amber"))
    assert all(judged.amnesia and not judged.text for judged in report.judged)


async def test_where_controls_do_not_echo_there_is_no_amnesia() -> None:
    """A model that never repeats its prompt says nothing by not repeating it."""
    report = await report_on(lambda body: answer(body, "noise"))
    assert not report.controls_echo
    assert not any(judged.amnesia for judged in report.judged)


async def test_a_refusal_is_a_status_and_no_marker_alarm() -> None:
    """400 is seen as such; its text is not searched for markers."""
    refusal = httpx.Response(400, json={"error": {"code": "context_length_exceeded", "message": "Hugo"}})
    report = await report_on(lambda body: refusal if is_oversize(body) else answer(body, "amber"))
    assert all(judged.status and not judged.marker for judged in report.judged)
    assert {each.error_code for each in report.answers} == {"context_length_exceeded"}


async def test_an_error_frame_inside_a_stream_is_a_status_alarm() -> None:
    """A stream that began with 200 and broke off is no good answer."""
    report = await report_on(lambda body: answer(body, "amber", error=is_oversize(body)))
    assert [judged.status for judged in report.judged] == [True, False]


async def test_a_client_that_leaves_reads_no_further() -> None:
    """The cut-off request ends after so many pieces and is marked so."""
    frames = "".join(f"data: {json.dumps({'choices': [{'text': str(n)}]})}\n\n" for n in range(9))
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, text=frames))
    async with httpx.AsyncClient(transport=transport, base_url=DOOR.url) as client:
        seen = await ask(client, DOOR, Ask("cut", ASKER, [1], 9, cut_after=3))
    assert (seen.text, seen.was_cut) == ("012", True)


@pytest.mark.parametrize("tenant", ["somebody-else"])
async def test_the_detector_has_no_key_but_its_own(tenant: str) -> None:
    """A request of another tenant cannot be sent with what the detector knows."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500))) as client:
        with pytest.raises(KeyError):
            await ask(client, DOOR, Ask("x", tenant, [1], 1))
