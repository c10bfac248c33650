"""``kvfence prove explore``: every reachable state of a small closed world, or the shortest way to a broken property.

The machinery is imported inside the command: the help needs none of it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kvfence.cli.beside import refuse_beside
from kvfence.cli.exits import ExitCode
from kvfence.cli.render import console, print_json, print_note, print_table
from kvfence.cli.written import refuse_unwritable
from kvfence.core.errors import SettingsError

if TYPE_CHECKING:
    from kvfence.protocol.guards import Rules
    from kvfence.protocol.transitions import Fence
    from kvfence.prove.examine import Examined
    from kvfence.prove.search import Limits, Progress, Result, Search
    from kvfence.prove.story import Story

app = typer.Typer()

EPILOGUE = """
Examples:

kvfence prove explore

kvfence prove explore --faults none

kvfence prove explore --settled --requests 3 --at-once 1 --answer 1 --faults deadline,retry --faults-max 2

kvfence prove explore --faults deadline,stall --without quarantine-on-revoke

The incident, page by page: a prompt larger than prefill's pool, and the guards that its engine lacked:

kvfence prove explore --setup placeholder --prompt 4 --decode-pages 3 --faults none --property reads-own-bytes
--without fits@gateway,refusal-is-final,count-matches,stamp-at-adopt,stamp-at-read,digest-matches
"""

Requests = Annotated[int, typer.Option("--requests", min=1, max=4, help="How many clients ask.")]
Prompt = Annotated[int, typer.Option("--prompt", min=1, max=16, help="Tokens of each prompt; a page holds two.")]
Answer = Annotated[int, typer.Option("--answer", min=1, max=4, help="Tokens of each answer; 1: the first token alone.")]
AtOnce = Annotated[int, typer.Option("--at-once", min=0, help="So many clients wait at once; 0: all of them.")]
Faults = Annotated[str, typer.Option("--faults", help="all, none, or names with commas between them; ?: name them.")]
FaultsMax = Annotated[
    int, typer.Option("--faults-max", min=0, help="How many of them at most in one run; default: one.")
]
Setup = Annotated[
    list[str] | None, typer.Option("--setup", help="A mistake that is there from the start; ?: name them.")
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="GUARD", help="Take guards away, with commas between them; ?: name them."),
]
Property = Annotated[list[str] | None, typer.Option("--property", help="Stop at these only; default: at any.")]
PrefillPages = Annotated[int, typer.Option("--prefill-pages", min=1, max=8, help="Pages of prefill's pool.")]
DecodePages = Annotated[int, typer.Option("--decode-pages", min=2, max=12, help="Pages of decode's pool.")]
FenceOption = Annotated[str, typer.Option("--fence", help="peer_exit, new_session or at_receipt.")]
Unordered = Annotated[bool, typer.Option("--unordered", help="Parts of a write land in any order.")]
Settled = Annotated[
    bool,
    typer.Option("--settled", help="What no order can change happens at once: fewer states, and not the shortest way."),
]
StatesMax = Annotated[int, typer.Option("--max-states", min=0, help="Give up after so many states; 0: never.")]
Minutes = Annotated[float, typer.Option("--max-minutes", min=0, help="Give up after so much CPU time; 0: never.")]
Memory = Annotated[float, typer.Option("--memory", min=0, help="Give up at so many GB; 0: never.")]
As = Annotated[str, typer.Option("--as", metavar="ENGINE", help="The guards that a released engine has.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to step through.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command(epilog=EPILOGUE)
def explore(
    context: typer.Context,
    requests: Requests = 2,
    prompt: Prompt = 2,
    answer: Answer = 2,
    at_once: AtOnce = 0,
    faults: Faults = "all",
    faults_max: FaultsMax = 1,
    setup: Setup = None,
    without: Without = None,
    properties: Property = None,
    prefill_pages: PrefillPages = 1,
    decode_pages: DecodePages = 2,
    fence: FenceOption = "peer_exit",
    unordered: Unordered = False,
    settled: Settled = False,
    max_states: StatesMax = 0,
    max_minutes: Minutes = 0,
    memory: Memory = 0,
    engine: As = "",
    html: Html = None,
    json: Json = False,
) -> None:
    """Search every reachable state of a small closed world with the very ``step`` that the server runs.

    Exit 1: a property can be broken, and here is the shortest way; 0: none within these bounds, every state seen;
    3: a limit was met first.
    """
    refuse_unwritable({"--html": html})
    if engine:
        refuse_beside(context, "--as", ("engine", "html", "json"))
        _as_engine(engine, html, json=json)
    from msgspec.structs import replace

    from kvfence.prove.bounds import Asked, Bounds
    from kvfence.prove.search import Search

    capacity = replace(
        Bounds().capacity, prefill_pages=prefill_pages, decode_pages=decode_pages, context_tokens=prompt + 4
    )
    bounds = Bounds(
        requests=tuple(Asked(num_tokens=prompt, max_tokens=answer, tenant=number) for number in range(requests)),
        capacity=capacity,
        rules=_rules(without or []),
        faults=_names("--faults", faults),
        faults_max=faults_max,
        setups=_names("--setup", ",".join(setup or [])),
        asking_max=at_once,
        fence=_fence(fence),
        in_order=not unordered,
        settled=settled,
    )
    search = Search(bounds, _limits(max_states, max_minutes, memory), _properties(properties or []), _progress())
    try:
        result = search.run()
    except KeyboardInterrupt:
        result = search.broken_off()
    show(search, result, html, json=json)


def _as_engine(name: str, html: Path | None, *, json: bool) -> NoReturn:
    """Search for what a released engine's guards let through."""
    from kvfence.prove.engines import ENGINES
    from kvfence.prove.examine import document, examine
    from kvfence.prove.page import story_page
    from kvfence.prove.report import lines_of

    if name not in ENGINES:
        raise SettingsError([f"--as {name}: one of {', '.join(ENGINES)}"])
    engine = ENGINES[name]
    found = examine(engine)
    stories = [each.story for each in found if each.story is not None]
    if html is not None:
        subtitle = "; ".join(f"{fact.guard} {'present' if fact.present else 'absent'}" for fact in engine.facts)
        html.write_text(story_page(name, subtitle, stories), encoding="utf-8")
    if json:
        print_json(document(engine, found))
    else:
        rows = [(f.guard, "present" if f.present else "absent", f.how, f.source) for f in engine.facts]
        print_table(name, ("guard", "", "how", "source"), rows, stderr=False)
        out = console(stderr=False)
        for each in found:
            out.print(f"\n{each.finding.name}: {_came_of(each)} ({each.result.states:,} states)", markup=False)
            for line in lines_of(each.story) if each.story else ():
                out.print(line, markup=False, soft_wrap=True)
    if stories:
        raise typer.Exit(ExitCode.FOUND)
    exhausted = all(each.result.exhausted for each in found)
    raise typer.Exit(ExitCode.NOTHING_FOUND if exhausted else ExitCode.COULD_NOT_TELL)


def _came_of(each: "Examined") -> str:
    if each.story is not None:
        return "found"
    return "not found, every state seen" if each.result.exhausted else f"UNKNOWN: ended by {each.result.bound}"


def show(search: "Search", result: "Result", html: Path | None, *, json: bool) -> None:
    """Print what was found and end with its exit code."""
    from kvfence.prove.page import story_page
    from kvfence.prove.report import document, lines_of
    from kvfence.prove.story import tell

    ways = [way for way in result.broken if way.name in search.targets] or result.broken
    stories = [tell(search, way) for way in ways]
    if html is not None:
        html.write_text(story_page("A search of the protocol", _summary(result, stories), stories), encoding="utf-8")
    if json:
        print_json(document(search.bounds, result, stories))
    else:
        out = console(stderr=False)
        for story in stories:
            for line in lines_of(story):
                out.print(line, markup=False, soft_wrap=True)
        print_note(_summary(result, stories))
    if stories:
        raise typer.Exit(ExitCode.FOUND)
    raise typer.Exit(ExitCode.NOTHING_FOUND if result.exhausted else ExitCode.COULD_NOT_TELL)


def _summary(result: "Result", stories: "list[Story]") -> str:
    found = f"found in {len(stories[0].moments)} steps" if stories else ""
    ended = found or ("exhausted" if result.exhausted else f"UNKNOWN: ended by {result.bound}")
    rate = result.states / max(result.cpu_s, 1e-9)
    return (
        f"{ended}: {result.states:,} states, {result.transitions:,} transitions, depth {result.depth}; "
        f"{result.cpu_s:.2f} s of CPU, {rate:,.0f} states/s, peak {result.peak_bytes / 1e6:,.0f} MB"
    )


def _limits(states: int, minutes: float, gigabytes: float) -> "Limits":
    import math

    from kvfence.prove.search import Limits

    given = {"--max-minutes": minutes, "--memory": gigabytes}
    if wrong := [
        f"{option} {value}: a number; 0: never" for option, value in given.items() if not math.isfinite(value)
    ]:
        raise SettingsError(wrong)
    return Limits(states, minutes * 60, int(gigabytes * 1e9))


def _rules(without: list[str]) -> "Rules":
    from kvfence.protocol.guards import ASKED, GUARDS, Rules

    names = [name for given in without for name in given.split(",")]
    unknown = [name for name in names if name not in ASKED and name not in GUARDS]
    if unknown:
        raise SettingsError([f"--without {name}: the guards are {', '.join(GUARDS)}" for name in unknown])
    return Rules.without(*names)


def _properties(names: list[str]) -> list[str]:
    """Refuse what can never break because there is no such property."""
    import difflib

    from kvfence.protocol.properties import OF_NODES, OF_STEPS, OF_WORLDS
    from kvfence.prove.steps import REFUSED

    known = [REFUSED, *(p.name for p in OF_NODES), *(p.name for p in OF_STEPS), *(p.name for p in OF_WORLDS)]
    problems = []
    for name in names:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        problems += [] if name in known else [f"--property {name}: no property is called that; {hint}"]
    if problems:
        raise SettingsError(problems)
    return names


def _names(option: str, text: str) -> frozenset[str]:
    from kvfence.prove.bounds import BEYOND, FAULTS, SETUPS

    if text in ("all", "none") and option == "--faults":
        return frozenset(FAULTS if text == "all" else ())
    known = FAULTS | BEYOND if option == "--faults" else SETUPS
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError([f"{option} {name}: one of {', '.join(known)}" for name in unknown])
    return frozenset(names)


def _fence(name: str) -> "Fence":
    from kvfence.protocol.transitions import Fence

    known = {each.value: each for each in Fence if each is not Fence.NONE}
    if name not in known:
        raise SettingsError([f"--fence {name}: one of {', '.join(known)}"])
    return known[name]


def _progress() -> "Progress":
    import time

    last = [time.monotonic()]

    def say(states: int, depth: int, waiting: int) -> None:
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            print_note(f"prove: {states:,} states, depth {depth}, {waiting:,} waiting")

    return say
