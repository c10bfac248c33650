"""``kvfence range NAME``: a practice server that leaks in a known way, on loopback alone, until Ctrl-C.

Not for: putting it together (``range_stage.py``) or what goes wrong in it (``kvfence.ranges``).
"""

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_error, print_json, print_note, print_table
from kvfence.cli.shared_options import SEED_MAX, require_finite
from kvfence.core.errors import CapacityError, SettingsError

if TYPE_CHECKING:
    from kvfence.cli.range_stage import Ask, Practice

app = typer.Typer()

EPILOGUE = """
Examples:

kvfence range --list

kvfence range incident --port 8100

kvfence range sound --context 4096 --prefill-tokens 1024 --decode-tokens 2048
"""


@app.command("range", epilog=EPILOGUE)
def practise(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which; --list names them.")] = "",
    all_names: Annotated[bool, typer.Option("--list", help="Say what each teaches, and end.")] = False,
    host: Annotated[str, typer.Option(help="A loopback address; every other is refused.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0: any free one.")] = 8100,
    model: Annotated[
        str, typer.Option(help="A checkpoint, or 'embedded'; default: the practice model, which repeats.")
    ] = "",
    context: Annotated[int, typer.Option(min=64, help="Tokens that it advertises.")] = 2048,
    prefill_tokens: Annotated[int, typer.Option(min=16, help="Prefill's pool.")] = 1024,
    decode_tokens: Annotated[int, typer.Option(min=32, help="Decode's pool.")] = 1536,
    page_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens in a page.")] = 16,
    prefill_rate: Annotated[
        float | None,
        typer.Option(
            min=0, help="The practice model's prompt tokens a second; 0: as fast as it can; default: 20000, or fewer."
        ),
    ] = None,
    decode_rate: Annotated[
        float, typer.Option(min=0, help="The practice model's tokens a second of each answer; 0: as fast as it can.")
    ] = 500,
    rate: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of what can go wrong that does; default: each one's own (--list)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEED_MAX, help="Of what goes wrong by chance.")] = 1,
    refusal_after_s: Annotated[float, typer.Option(min=0, help="How long slow-refusal keeps a refusal back.")] = 20.0,
    json: Annotated[bool, typer.Option("--json", help="With --list: one JSON document on stdout.")] = False,
) -> None:
    """Run a practice server that leaks on purpose, in one known way, to train on and to test what looks for leaks.

    The workers, page writes and gateway are serve's; guards are away, or one thing goes wrong, as its name says. It
    listens on loopback alone, takes any API key for a tenant, keeps none, and says what it is in each answer's headers.
    """
    from kvfence.ranges.catalogue import RANGES

    if all_names:
        _list(json=json)
        return
    if name not in RANGES:
        given = f"{name}: there is no such practice server" if name else "which practice server?"
        raise SettingsError([f"{given}; one of {', '.join(RANGES)} (kvfence range --list says what each teaches)"])
    require_finite({"--prefill-rate": prefill_rate, "--decode-rate": decode_rate, "--refusal-after-s": refusal_after_s})
    from kvfence.cli.range_stage import Ask, Sizes
    from kvfence.ranges.orders import Orders

    practice = RANGES[name]
    orders = Orders(
        fault=practice.fault,
        rate=practice.default_rate if rate is None else rate,
        seed=seed,
        practice=not model,
        context_tokens=context,
        prefill_rate=practice.prefill_rate if prefill_rate is None else prefill_rate,
        decode_rate=decode_rate,
        refusal_after_s=refusal_after_s,
    )
    sizes = Sizes(context, prefill_tokens, decode_tokens, page_size)
    raise typer.Exit(asyncio.run(_serve(Ask(practice, orders, sizes, model, host, port))))


def _list(*, json: bool) -> None:
    from kvfence.ranges.catalogue import RANGES

    if json:
        print_json(
            [
                {
                    "name": each.name,
                    "teaches": each.teaches,
                    "shows": each.shows,
                    "guards_away": sorted(each.lacks),
                    "rate": each.rate,
                }
                for each in RANGES.values()
            ]
        )
        return
    rows = [
        (
            each.name,
            each.teaches,
            each.shows,
            ", ".join(each.lacks) or "-",
            "-" if each.rate is None else str(each.rate),
        )
        for each in RANGES.values()
    ]
    columns = ("name", "what it teaches", "what one sees", "guards away", "rate")
    print_table("Practice servers", columns, rows, stderr=False)


async def _serve(ask: "Ask") -> int:
    """Serve until a signal, or until something of the server broke."""
    from kvfence.cli.range_stage import in_own_flags, practising

    serving, loop = asyncio.current_task(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if serving is not None:
            loop.add_signal_handler(number, serving.cancel)
    try:
        async with practising(ask) as practice:
            _introduce(ask, practice)
            await practice.supervisor.failed.wait()
            print_error(f"a bug in kvfence: {practice.supervisor.failure}. Please report it (CONTRIBUTING.md)")
            return int(ExitCode.OUR_FAULT)
    except CapacityError as error:
        raise CapacityError(in_own_flags(str(error))) from error
    except asyncio.CancelledError:
        print_note("stopped")
        return int(ExitCode.NOTHING_FOUND)


def _introduce(ask: "Ask", running: "Practice") -> None:
    """Say what is wrong with it, what one will see, and how to look."""
    from kvfence.ranges.catalogue import PAGES_MIN

    practice = ask.range
    capacity, url = running.capacity, running.address.url
    page = capacity.page_size
    if practice.leaks:
        print_error(f"PRACTICE SERVER {practice.name}: it leaks on purpose. Send it nothing that may not be seen.")
    else:
        print_note(f"practice server {practice.name}: every guard on")
    print_note(f"  teaches: {practice.teaches}")
    print_note(f"  you will see: {practice.shows}")
    print_note(f"  guards away: {', '.join(practice.lacks) or 'none'}")
    if practice.rate is not None:
        print_note(f"  goes wrong: {ask.orders.rate:.0%} of the batches of {PAGES_MIN} pages or more")
    print_note(
        f"  advertised context {capacity.context_tokens} tokens, prefill pool {capacity.prefill_pages * page}, "
        f"decode pool {capacity.decode_pages * page}, pages of {page}; any API key is a tenant"
    )
    print_note(f"  look at it: kvfence probe run --base-url {url}/v1 --model {running.model}")
    print_note(f"ready: {url}/v1  model {running.model}; until Ctrl-C")
