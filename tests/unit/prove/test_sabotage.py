"""Hostile hands on a run's traces, the sums made anew after each: none of what they leave is taken for conforming."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfence.prove.replay import Ruling, replay
from tests.recorded import bodies, record_seed, resealed
from tests.unit.prove.test_replay import HONEST

Lines = list[dict[str, Any]]
Run = dict[str, Lines]
"""A run's traces by role: header, steps, end."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """The longest trace of each role in one honest run."""
    paths = record_seed(tmp_path_factory.mktemp("run"), 6, faults=HONEST)
    longest: dict[str, list[bytes]] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        longest[path.name.partition("-")[0]] = bodies(path.read_bytes())
    return longest


def numbered(lines: Lines) -> Lines:
    """Number the steps and the end anew."""
    for n, line in enumerate(lines[1:], 1):
        line["n"] = n if line["type"] == "step" else n - 1
    return lines


def first(lines: Lines, holds: Callable[[dict[str, Any]], Any]) -> int:
    """Find the first step of which something holds."""
    return next(n for n, line in enumerate(lines) if line["type"] == "step" and holds(line))


def event_is(*kinds: str) -> Callable[[dict[str, Any]], bool]:
    """Ask whether a step's event, or the message in it, is of one of these kinds."""

    def asked(line: dict[str, Any]) -> bool:
        event = line["event"]
        return event["type"] in kinds or event.get("envelope", {}).get("message", {}).get("type") in kinds

    return asked


def moves(kind: str) -> Callable[[dict[str, Any]], bool]:
    """Ask whether a step moves pages so."""
    return lambda line: any(c["type"] == "Move" and c["move"] == kind for c in line["commands"])


def message(line: dict[str, Any]) -> dict[str, Any]:
    """Give the message that a step received."""
    found: dict[str, Any] = line["event"]["envelope"]["message"]
    return found


def drop(run: Run, role: str, holds: Callable[[dict[str, Any]], Any]) -> None:
    """Take a step out and number the rest anew."""
    del run[role][first(run[role], holds)]
    numbered(run[role])


def at(run: Run, role: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Give the step to be spoilt."""
    return run[role][first(run[role], holds)]


def _swap(run: Run) -> None:
    lines = run["decode"]
    sent, verified = first(lines, event_is("Sent")), first(lines, event_is("Verified"))
    lines[sent]["event"], lines[verified]["event"] = lines[verified]["event"], lines[sent]["event"]


def _repeat(run: Run) -> None:
    lines = run["decode"]
    verified = first(lines, event_is("Verified"))
    lines.insert(verified, json.loads(json.dumps(lines[verified])))
    numbered(lines)


def _splice(run: Run) -> None:
    run["decode"] = numbered([*run["decode"][:10], *run["prefill"][10:]])


def _two_at_once(run: Run) -> None:
    run["decode"] = [*run["decode"], *run["prefill"]]


def _grant_from_another(run: Run) -> None:
    grant = next(c for c in at(run, "decode", moves("grant"))["commands"] if c["type"] == "Move")
    grant["pages"] = [page + 1 for page in grant["pages"]]


def _early_release(run: Run) -> None:
    line = at(run, "decode", moves("adopt"))
    line["commands"].append({"type": "Move", "move": "release", "serial": 1, "pages": [0]})


def _last_line(run: Run, n: int) -> None:
    run["decode"][-1]["n"] += n


def _set(run: Run, role: str, holds: Callable[[dict[str, Any]], Any], field: str, value: object) -> None:
    at(run, role, holds)["event"][field] = value


SABOTAGE: dict[str, Callable[[Run], object]] = {
    "a grant taken out": lambda run: drop(run, "decode", moves("grant")),
    "the verification taken out": lambda run: drop(run, "decode", event_is("Verified")),
    "what came of it taken out": lambda run: drop(run, "decode", event_is("DeadlinePassed", "Failed", "Abort", "Sent")),
    "the sealing taken out": lambda run: drop(run, "prefill", event_is("PagesSealed")),
    "a batch's end taken out": lambda run: drop(run, "prefill", event_is("BatchEnded")),
    "an offer taken out": lambda run: drop(run, "decode", event_is("Offer")),
    "the submission taken out": lambda run: drop(run, "gateway", event_is("Submit")),
    "two events swapped": _swap,
    "a verification repeated": _repeat,
    "half of it from another worker": _splice,
    "another worker's trace behind it": _two_at_once,
    "the end twice": lambda run: run["decode"].append(dict(run["decode"][-1])),
    "the end taken out": lambda run: run["decode"].pop(),
    "an end that counts fewer": lambda run: _last_line(run, -1),
    "an end that counts more": lambda run: _last_line(run, 3),
    "nothing but the header": lambda run: run.update(decode=run["decode"][:1]),
    "no header": lambda run: run["decode"].pop(0),
    "a smaller pool": lambda run: run["decode"][0]["node"].update(pool_pages=3),
    "another transport": lambda run: run["decode"][0]["node"].update(fence="none"),
    "another layout": lambda run: run["decode"][0]["node"].update(layout="of another"),
    "another page size": lambda run: run["decode"][0]["node"]["capacity"].update(page_size=2),
    "another life": lambda run: run["decode"][0].update(incarnation="f" * 32),
    "another role": lambda run: run["decode"][0].update(role="prefill"),
    "a role that is none": lambda run: run["decode"][0].update(role="observer"),
    "a plug-in's header": lambda run: run["decode"][0].update(engine="sglang 0.5.19"),
    "an older schema": lambda run: run["decode"][0].update(schema=3),
    "a guard that is none": lambda run: run["decode"][0].update(absent=["luck@decode"]),
    "pages granted that were not": _grant_from_another,
    "pages released that were not": _early_release,
    "a decision turned": lambda run: at(run, "decode", lambda line: line["decisions"])["decisions"][0].update(
        holds=False
    ),
    "decisions left out": lambda run: at(run, "decode", lambda line: line["decisions"]).update(decisions=[]),
    "commands left out": lambda run: at(run, "decode", moves("adopt")).update(commands=[]),
    "a mismatch made good": lambda run: _set(run, "decode", event_is("Verified"), "digests_match", value=False),
    "a page that was misread": lambda run: _set(run, "decode", event_is("Verified"), "bad_stamps", [0]),
    "a longer prompt": lambda run: message(at(run, "decode", event_is("Offer"))).update(num_tokens=9_999),
    "another attempt": lambda run: message(at(run, "decode", event_is("Sent"))).update(attempt=["e" * 32, 1]),
    "another sender": lambda run: at(run, "decode", event_is("Sent"))["event"]["envelope"].update(sender="e" * 32),
    "another receiver": lambda run: at(run, "decode", event_is("Sent"))["event"]["envelope"].update(receiver="e" * 32),
    "fewer tokens sent": lambda run: message(at(run, "decode", event_is("Sent")))["manifest"].update(num_tokens=1),
    "another grant's pages sent": lambda run: message(at(run, "decode", event_is("Sent"))).update(grant_serial=77),
    "a clock that goes back": lambda run: at(run, "decode", event_is("Verified")).update(at_ns=0),
    "a number left out": lambda run: run["decode"][4].update(n=99),
    "an event of no kind": lambda run: _set(run, "decode", event_is("Verified"), "type", "Blessed"),
    "no event": lambda run: at(run, "decode", event_is("Verified")).pop("event"),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_never_conforming(run: dict[str, list[bytes]], tmp_path: Path, name: str) -> None:
    """Whatever was taken out, put in, moved or changed, with all sums right: not allowed, violated or unknown."""
    spoilt = {role: [json.loads(line) for line in lines] for role, lines in run.items()}
    SABOTAGE[name](spoilt)
    paths = []
    for role, lines in spoilt.items():
        paths.append(tmp_path / f"{role}.ndjson")
        paths[-1].write_bytes(resealed([json.dumps(line, separators=(",", ":")).encode() for line in lines]))
    assert replay(paths).verdict is not Ruling.CONFORMING


def test_what_was_recorded_conforms(run: dict[str, list[bytes]], tmp_path: Path) -> None:
    """Written out again as it was, the same run conforms: what is refused above is the sabotage."""
    for role, lines in run.items():
        (tmp_path / f"{role}.ndjson").write_bytes(
            resealed([json.dumps(json.loads(line), separators=(",", ":")).encode() for line in lines])
        )
    assert replay(sorted(tmp_path.glob("*.ndjson"))).verdict is Ruling.CONFORMING


RAW: dict[str, Callable[[bytes], bytes]] = {
    "a blank line": lambda raw: raw.replace(b"\n", b"\n\n", 1),
    "line ends of another system": lambda raw: raw.replace(b"\n", b"\r\n"),
    "a byte-order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "another encoding": lambda raw: raw.decode().encode("utf-16"),
    "a space": lambda raw: raw.replace(b'"n":3', b'"n": 3', 1),
    "zeros at the end": lambda raw: raw + bytes(4096),
    "a sum of another line": lambda raw: b"".join(
        [*raw.splitlines(keepends=True)[:-2], raw.splitlines(keepends=True)[3]]
    ),
    "no sums": lambda raw: b"\n".join(bodies(raw)) + b"\n",
    "itself twice": lambda raw: raw + raw,
    "its lines backwards": lambda raw: b"".join(reversed(raw.splitlines(keepends=True))),
}


@pytest.mark.parametrize("name", RAW)
def test_other_bytes_are_unknown(run: dict[str, list[bytes]], tmp_path: Path, name: str) -> None:
    """What carries no right sum, or is no trace at all, is UNKNOWN and never a crash."""
    path = tmp_path / "decode.ndjson"
    path.write_bytes(RAW[name](resealed(run["decode"])))
    assert replay([path]).verdict is Ruling.UNKNOWN
