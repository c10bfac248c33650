"""What a plug-in writes down of a pair of engines, and what replay says of it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvfence.core.ids import AttemptId, Incarnation, SessionId
from kvfence.guard.watcher import Engine, Watcher
from kvfence.protocol.admission import Capacity
from kvfence.protocol.events import SessionRebuilt
from kvfence.protocol.guards import Place
from kvfence.protocol.messages import Drained, Unknown
from kvfence.protocol.watched import (
    Asked,
    AtDoor,
    Checked,
    Compared,
    Declined,
    Heard,
    Misread,
    Posted,
    Promised,
    Reserved,
    Returning,
    Said,
    Used,
    Watched,
)
from kvfence.prove.replay import Replay, Ruling, replay
from tests.recorded import bodies, resealed

PREFILL, DECODE = Incarnation("a" * 32), Incarnation("b" * 32)
LAYOUT = "2 layers"
ONE, TWO = AttemptId(DECODE, 1), AttemptId(DECODE, 2)
PAGES = (4, 5)


def promised(attempt: AttemptId = ONE, **other: object) -> Promised:
    """What prefill says of an honest attempt, but for what is named."""
    return replace(Promised(attempt, 30, 2, LAYOUT, "d1"), **other)


def at_prefill(attempt: AttemptId = ONE) -> list[Watched]:
    """What prefill's plug-in sees of an honest hand-off."""
    return [
        Heard(DECODE, Asked(attempt, 30, 2, LAYOUT)),
        AtDoor(refused=False),
        Posted(attempt, 1),
        Posted(attempt, 1),
        Said(promised(attempt), DECODE),
        Returning(attempt),
    ]


def at_decode(attempt: AttemptId = ONE) -> list[Watched]:
    """What decode's plug-in sees of it."""
    return [
        AtDoor(refused=False),
        Reserved(attempt, 30, PAGES),
        Said(Asked(attempt, 30, 2, LAYOUT), PREFILL),
        Heard(PREFILL, promised(attempt)),
        Compared(attempt, 30, 2, promised(attempt), "d1"),
        Used(attempt),
        Checked(3, 6),
        Returning(attempt),
    ]


def write(
    folder: Path, role: Place, events: Sequence[Watched], *, enforced: bool = True, unseen: Sequence[str] = ()
) -> Path:
    """Write a plug-in's trace."""
    life = PREFILL if role == "prefill" else DECODE
    engine = Engine("sglang 0.5.19", role, life, LAYOUT, Capacity(16, 2048, 64, 64), tuple(unseen))
    watcher = Watcher(engine, enforced=enforced, folder=folder)
    for event in events:
        watcher.see(event)
    watcher.close()
    return folder / f"{role}-{life[:8]}.ndjson"


def judged(folder: Path, events: Sequence[Watched], *, enforced: bool = True, unseen: Sequence[str] = ()) -> Replay:
    """Replay a decode plug-in's trace of these facts."""
    return replay([write(folder, "decode", events, enforced=enforced, unseen=unseen)])


@pytest.mark.parametrize("enforced", [True, False])
def test_an_honest_pair_conforms(tmp_path: Path, enforced: bool) -> None:
    """Both plug-ins' traces are allowed, and what decode heard is what prefill promised."""
    paths = [
        write(tmp_path, "prefill", [*at_prefill(ONE), *at_prefill(TWO)], enforced=enforced),
        write(tmp_path, "decode", [*at_decode(ONE), *at_decode(TWO)], enforced=enforced),
    ]
    found = replay(paths)
    assert found.verdict is Ruling.CONFORMING, [each.why for each in found.traces]
    assert (found.num_compared, found.num_elsewhere) == (2, 0)
    assert not any(each.untold for each in found.traces)
    assert {(g.guard, g.passed) for g in found.coverage if g.place == "decode"} >= {
        ("digest-matches", 2),
        ("stamp-at-read", 2),
        ("drain-or-fence", 2),
    }


def without(events: Sequence[Watched], *kinds: type) -> list[Watched]:
    """Leave out facts of these kinds."""
    return [event for event in events if not isinstance(event, kinds)]


STALE = promised(TWO)
ATTACKS: dict[str, tuple[list[Watched], str]] = {
    "pages that nobody wrote": (
        [*at_decode()[:3], Compared(ONE, 30, 2, None), Used(ONE)],
        "adopted-is-verified",
    ),
    "a placeholder of one token": (
        [
            *at_decode()[:3],
            Heard(PREFILL, promised(num_tokens=1, num_pages=1)),
            Compared(ONE, 30, 2, promised(num_tokens=1, num_pages=1), None),
            Used(ONE),
        ],
        "adopted-is-verified",
    ),
    "a promise of an earlier use of the room": (
        [*at_decode()[:3], Compared(ONE, 30, 2, STALE, None), Used(ONE)],
        "adopted-is-verified",
    ),
    "other bytes than promised": (
        [*at_decode()[:4], Compared(ONE, 30, 2, promised(), "d2"), Used(ONE)],
        "adopted-is-verified",
    ),
    "another layout": (
        [
            *at_decode()[:3],
            Heard(PREFILL, promised(layout="4 layers")),
            Compared(ONE, 30, 2, promised(layout="4 layers"), None),
            Used(ONE),
        ],
        "adopted-is-verified",
    ),
    "a lease that was lost": (
        [*at_decode()[:4], Compared(ONE, 30, 2, promised(), "d1", ("hold-source",)), Used(ONE)],
        "adopted-is-verified",
    ),
    "bytes that nobody looked at": (
        [*at_decode()[:4], Compared(ONE, 30, 2, promised()), Used(ONE)],
        "adopted-is-verified",
    ),
    "nothing compared": ([*at_decode()[:4], Used(ONE)], "adopted-is-verified"),
    "a refused request that enters the queue": ([AtDoor(refused=True)], "refused-is-not-run"),
    "pages given back while a write may land": ([*at_decode()[:3], Returning(ONE)], "no-timer-frees"),
    "pages given back after a stray write": (
        [*at_decode()[:4], Compared(ONE, 30, 2, promised(), "d2"), Returning(ONE)],
        "no-timer-frees",
    ),
    "a page set aside twice": ([*at_decode()[:3], Reserved(TWO, 10, (5, 6))], "granted-once"),
    "a page twice in one table": ([Reserved(ONE, 30, (4, 4))], "granted-once"),
    "a table with another's page": ([*at_decode()[:6], Misread(ONE, (5,))], "emitted-is-clean"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_was_only_observed_is_rejected(tmp_path: Path, name: str) -> None:
    """Nothing was refused, the engine went on, and the property that broke is named."""
    events, broken = ATTACKS[name]
    found = judged(tmp_path, events, enforced=False)
    assert found.verdict is Ruling.PROPERTY_VIOLATED, found.traces[0].why
    assert list(found.traces[0].violated) == [broken]


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_refused_conforms(tmp_path: Path, name: str) -> None:
    """Obeyed, the same course ends at the refusal, and breaks nothing but where no guard is asked."""
    events, broken = ATTACKS[name]
    found = judged(tmp_path, without(events, Used), enforced=True)
    expected = Ruling.PROPERTY_VIOLATED if broken == "granted-once" else Ruling.CONFORMING
    assert found.verdict is expected, found.traces[0].why


def test_pages_are_held_until_the_writer_is_done(tmp_path: Path) -> None:
    """Refused a return, they go back after *drained*, or after a new session, and not before."""
    begun = at_decode()[:3]
    for quiet in (Heard(PREFILL, Drained(ONE)), Heard(PREFILL, Declined(ONE)), SessionRebuilt(SessionId("s"))):
        found = judged(tmp_path, [*begun, Returning(ONE), quiet, Returning(ONE), Reserved(TWO, 30, PAGES)])
        assert found.verdict is Ruling.CONFORMING, found.traces[0].why
        answers = next(each for each in found.coverage if each.guard == "drain-or-fence")
        assert (answers.passed, answers.refused) == (1, 1)
    unknown = [*begun, Heard(PREFILL, Unknown(ONE)), Heard(PREFILL, Drained(ONE)), Returning(ONE)]
    assert judged(tmp_path, unknown, enforced=False).traces[0].violated == {"no-timer-frees": 6}


def test_prefill_gives_nothing_back_that_is_being_read(tmp_path: Path) -> None:
    """Pages that were posted are held until the promise, or until prefill says that it is drained."""
    asked, _, posted, *_ = at_prefill()
    found = replay([write(tmp_path, "prefill", [asked, posted, Returning(ONE)], enforced=False)])
    assert found.traces[0].violated == {"source-held": 3}
    drained = [asked, posted, Returning(ONE), Said(Drained(ONE), DECODE), Returning(ONE)]
    assert replay([write(tmp_path, "prefill", drained)]).verdict is Ruling.CONFORMING


def test_prefill_sends_what_was_asked_for_and_promises_what_it_sent(tmp_path: Path) -> None:
    """Pages to a decode without a plug-in, or more promised than sent, are named."""
    for events, broken in (
        ([Posted(None, 2)], "sent-is-asked"),
        ([*at_prefill()[:3], Said(promised(), DECODE)], "promised-is-sent"),
    ):
        found = replay([write(tmp_path, "prefill", events, enforced=False)])
        assert list(found.traces[0].violated) == [broken]


def test_a_promise_that_nobody_made_is_not_allowed(tmp_path: Path) -> None:
    """Both traces stand for themselves; held against each other decode heard more than prefill said."""
    forged = [event if not isinstance(event, Heard) else Heard(PREFILL, promised(digest="d1")) for event in at_decode()]
    other = [e if not isinstance(e, Said) else Said(promised(digest="d9"), DECODE) for e in at_prefill()]
    paths = [write(tmp_path, "prefill", other), write(tmp_path, "decode", forged)]
    assert {replay([path]).verdict for path in paths} == {Ruling.CONFORMING}
    assert [each.verdict for each in replay(paths).traces] == [Ruling.CONFORMING, Ruling.NOT_ALLOWED]


def test_a_promise_that_travels_with_the_request_is_held_against_its_maker(tmp_path: Path) -> None:
    """Where prefill mints the attempt, decode compares before it sets anything aside, and again when it has read."""
    pulled = AttemptId(PREFILL, 7)
    prefill = [Said(promised(pulled))]
    decode: list[Watched] = [
        Compared(pulled, 30, 2, promised(pulled)),
        Reserved(pulled, 30, PAGES),
        Said(Asked(pulled, 30, 2, LAYOUT)),
        Compared(pulled, 30, 2, promised(pulled), "d1"),
        Used(pulled),
        Returning(pulled),
    ]
    paths = [write(tmp_path, "prefill", prefill, unseen=("post", "release")), write(tmp_path, "decode", decode)]
    found = replay(paths)
    assert (found.verdict, found.num_compared) == (Ruling.CONFORMING, 2)
    decode[0] = Compared(pulled, 30, 2, promised(pulled, num_tokens=31))
    assert replay([paths[0], write(tmp_path, "decode", decode)]).verdict is Ruling.NOT_ALLOWED


UNTOLD = {
    "door": {"refused-is-not-run"},
    "reserve": {"granted-once"},
    "release": {"granted-once", "no-timer-frees"},
    "pass": {"emitted-is-clean"},
    "post": set[str](),
}


@pytest.mark.parametrize("sight", UNTOLD)
def test_what_is_not_seen_is_said_and_not_judged(tmp_path: Path, sight: str) -> None:
    """A plug-in without a hook names it; the properties that need it are untold, and its facts may not appear."""
    kinds: dict[str, tuple[type, ...]] = {
        "door": (AtDoor,),
        "reserve": (Reserved,),
        "release": (Returning,),
        "pass": (Checked,),
        "post": (Posted,),
    }
    found = judged(tmp_path, without(at_decode(), *kinds[sight]), unseen=(sight,))
    assert found.verdict is Ruling.CONFORMING, found.traces[0].why
    assert set(found.traces[0].untold) == UNTOLD[sight]
    if sight != "post":
        assert judged(tmp_path, at_decode(), unseen=(sight,)).verdict is Ruling.NOT_ALLOWED


CANNOT_BE: dict[str, list[Watched]] = {
    "used without a reservation": [Used(ONE)],
    "asked for what was not set aside": [Said(Asked(ONE, 30, 2, LAYOUT), PREFILL)],
    "compared with a promise that nobody heard": [*at_decode()[:3], *at_decode()[4:]],
    "compared without what was heard": [*at_decode()[:4], Compared(ONE, 30, 2, None)],
    "one attempt twice": [at_decode()[1], at_decode()[1]],
    "given back twice": [*at_decode(), Returning(ONE)],
    "a fact of prefill": [Posted(ONE, 1)],
}


@pytest.mark.parametrize("name", CANNOT_BE)
def test_what_cannot_be_is_not_allowed(tmp_path: Path, name: str) -> None:
    """A hook that was forgotten, or a line that was taken out: the first fact that cannot be is named."""
    found = judged(tmp_path, CANNOT_BE[name])
    assert found.verdict is Ruling.NOT_ALLOWED
    assert found.traces[0].departure is not None


def test_other_decisions_than_follow_are_not_allowed(tmp_path: Path) -> None:
    """A plug-in that decided otherwise than the model is found out."""
    path = write(tmp_path, "decode", at_decode(), enforced=False)
    lines = bodies(path.read_bytes())
    number = next(n for n, line in enumerate(lines) if b'"Compared"' in line)
    lines[number] = lines[number].replace(b'"digest":"d1"},"digest":"d1"', b'"digest":"d1"},"digest":"d2"')
    path.write_bytes(resealed(lines))
    found = replay([path])
    assert found.verdict is Ruling.NOT_ALLOWED
    assert "other decisions" in found.traces[0].why


def test_a_killed_engine_leaves_a_trace_that_conforms_so_far(tmp_path: Path) -> None:
    """Every line is on disk at once; without its end it is UNKNOWN, and with ``so_far`` judged as far as it goes."""
    path = write(tmp_path, "decode", at_decode())
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert replay([path]).verdict is Ruling.UNKNOWN
    found = replay([path], so_far=True)
    assert (found.verdict, found.traces[0].why) == (Ruling.CONFORMING, "so far: it has no end")


def test_foreign_rules_roles_and_sights_are_unknown(tmp_path: Path) -> None:
    """A header that this build cannot read is no verdict."""
    path = write(tmp_path, "decode", at_decode(), enforced=False, unseen=())
    raw = path.read_bytes()
    for old, new in (
        (b"count-matches@decode", b"luck@decode"),
        (b'"role":"decode"', b'"role":"gateway"'),
        (b'"engine":"sglang 0.5.19"', b'"engine":"sglang 0.5.19","unseen":["sleep"]'),
    ):
        lines = bodies(raw)
        lines[0] = lines[0].replace(old, new)
        path.write_bytes(resealed(lines))
        assert replay([path]).verdict is Ruling.UNKNOWN


def test_what_is_forgotten_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that never closes a hand-off costs memory up to a bound; the oldest is forgotten."""
    monkeypatch.setattr("kvfence.driver.watch.OPEN_MAX", 3)
    events = [Reserved(AttemptId(DECODE, n), 1, (n,)) for n in range(1, 6)]
    assert judged(tmp_path, [*events, Reserved(AttemptId(DECODE, 9), 1, (1,))]).verdict is Ruling.CONFORMING
    assert judged(tmp_path, [*events, Returning(AttemptId(DECODE, 1))]).verdict is Ruling.NOT_ALLOWED


def test_without_a_folder_it_only_decides() -> None:
    """The answers are the same, and nothing is written; a fact that cannot be raises nothing."""
    engine = Engine("sglang 0.5.19", "decode", DECODE, LAYOUT, Capacity(16, 2048, 64, 64))
    watcher = Watcher(engine, enforced=True, folder=None)
    answers = [watcher.see(event) for event in at_decode()]
    assert all(answer.goes_on for answer in answers)
    assert [d.guard for d in answers[4].decisions][-1] == "digest-matches"
    assert not watcher.see(Used(TWO)).decisions
    watcher.close()
