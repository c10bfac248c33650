"""``kvfence serve``: prefill and decode workers behind an OpenAI API, every guard on.

This module can reach no other rule set and no fault injection: a contract of the import linter.
"""

import asyncio
import io
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from kvfence.cli.exits import ExitCode
from kvfence.cli.load_settings import load_settings
from kvfence.cli.render import print_error, print_note, progress
from kvfence.cli.settings_flags import Flags, with_settings_flags
from kvfence.cli.signals import drain, end_in_order, stop_on_signals
from kvfence.core.errors import SettingsError
from kvfence.core.settings import Settings, WorkerSettings

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kvfence.cli.compose import RunningServer

app = typer.Typer()

EPILOGUE = """
Examples:

kvfence serve

kvfence serve --model ./checkpoint --context auto --pool-tokens 65536

kvfence serve --host 0.0.0.0 --api-keys keys.txt

kvfence serve --engine sglang --model ./checkpoint --prefill http://10.0.0.1:30000 --decode http://10.0.0.2:30000

kvfence config show  (every setting, those without a flag too, and where it comes from)
"""


@app.command(epilog=EPILOGUE)
@with_settings_flags
def serve(
    flags: Flags,
    demo: Annotated[bool, typer.Option("--demo", help="Once ready, show what the server does.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --demo: stop after showing it.")] = False,
    observe: Annotated[
        bool,
        typer.Option(
            "--observe",
            help="DANGER: count what verification would refuse, and answer all the same. Other tenants' text can reach "
            "clients. To learn whether guards refuse honest traffic; cannot be set by file or environment.",
        ),
    ] = False,
    observe_on_network: Annotated[
        bool, typer.Option("--observe-on-network", help="With --observe: even where the host is not loopback.")
    ] = False,
) -> None:
    """Run the server on this host: OpenAI's API, prefill and decode workers, every KV page fenced.

    With --engine it is the gateway alone, before the prefill and decode workers of SGLang or vLLM that --prefill and
    --decode name by their URLs; --model then names the checkpoint whose tokenizer they use.

    Without --model the embedded SmolLM2-135M-Instruct is fetched once. It refuses to start where a pool cannot hold
    one whole context. Ctrl-C or SIGTERM ends it in order: no request is admitted any more, open ones get
    --drain-timeout-s to end. A second one ends it at once.
    """
    loaded = load_settings(flags.config, os.environ, flags.given)
    settings = loaded.settings
    if settings.engine.kind != "kvfence":
        from kvfence.cli.serve_engine import require_no_own_options, serve_engine

        require_no_own_options(demo=demo or once, observe=observe)
        raise typer.Exit(asyncio.run(serve_engine(loaded)))
    require_no_urls(settings)
    if observe:
        from kvfence.cli.observing import require_may_observe

        require_may_observe(settings, on_network=observe_on_network)
    code = asyncio.run(_serve(settings, demo=demo or once, once=once, observe=observe))
    raise typer.Exit(code)


def require_no_urls(settings: Settings) -> None:
    """Refuse workers' URLs without an engine: they would be left unasked.

    Raises:
        SettingsError: there are some.
    """
    if settings.engine.prefill or settings.engine.decode:
        raise SettingsError(["--prefill, --decode: URLs of another engine's workers; say which with --engine"])


async def _serve(settings: Settings, *, demo: bool, once: bool, observe: bool) -> int:
    from kvfence.cli.compose import describe_order, find_model, load_registry, make_plan, running_server
    from kvfence.protocol.guards import Rules

    order = describe_order(settings)
    if order:
        print_note(f"warning: {order}")
    registry, exposure = load_registry(settings)
    if exposure:
        print_note(f"warning: {exposure}")
    with progress("embedded model") as report:
        model = find_model(settings, report)
    plan = make_plan(settings, model, Rules.observing() if observe else Rules.all())
    if observe:
        _warn_of_observing()
    print_note(f"starting {model.name}: {_describe(settings.workers)}")
    stop = stop_on_signals()
    log = HeldLog() if demo else None
    try:
        starting = running_server(plan, model, registry, log)
        return await _run(starting, stop, _Show(demo, once, registry.open, settings, log))
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        print_note("stopped before it was ready")
        return int(ExitCode.NOTHING_FOUND)
    finally:
        if log is not None:
            log.release()


def _warn_of_observing() -> None:
    from kvfence.cli.observing import HEADLINE, describe_danger

    print_error(HEADLINE, describe_danger())


class HeldLog(io.StringIO):
    """Keeps log lines back while something is shown, so that they do not stand in the middle of an answer."""

    held = True

    def write(self, text: str) -> int:
        """Keep the text, or pass it on."""
        return super().write(text) if self.held else sys.stderr.write(text)

    def flush(self) -> None:
        """Flush what is passed on."""
        if not self.held:
            sys.stderr.flush()

    def release(self) -> None:
        """Write what was kept, and keep nothing more."""
        if self.held:
            self.held = False
            sys.stderr.write(self.getvalue())


class _Show(Struct, frozen=True):
    """What to show once ready."""

    demo: bool
    once: bool
    is_open: bool
    settings: Settings
    log: HeldLog | None


async def _run(starting: "AbstractAsyncContextManager[RunningServer]", stop: asyncio.Event, show: _Show) -> int:
    from kvfence.cli.demo import show_demo

    async with starting as server:
        hurry = end_in_order(stop)
        capacity = server.capacity
        page = capacity.page_size
        note = " (auto: the largest that both pools hold)" if show.settings.model.context == "auto" else ""
        workers = show.settings.workers
        each = " each, at least" if workers.prefill + workers.decode > 2 else ""
        print_note(
            f"ready: {server.address.url}/v1  context {capacity.context_tokens} tokens{note}, "
            f"prefill pool {capacity.prefill_pages * page}, decode pool {capacity.decode_pages * page} tokens{each}"
        )
        code = int(ExitCode.NOTHING_FOUND)
        if show.demo:
            shown = asyncio.create_task(show_demo(server, show.is_open))
            await asyncio.wait((shown, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            if not shown.done():
                shown.cancel()
                await asyncio.gather(shown, return_exceptions=True)
                return code
            code = shown.result()
            if show.log is not None:
                show.log.release()
        if not show.once:
            print_note("serving until Ctrl-C")
            code = await _until_over(server, stop)
            print_note(f"stopping: open requests get {workers.drain_timeout_s:g} s to end; once more ends them now")
            await drain(server.supervisor.dispatcher, workers.drain_timeout_s, hurry)
    return code


async def _until_over(server: "RunningServer", stop: asyncio.Event) -> int:
    """Wait for a signal, or until something of the server broke: then nothing is answered any more."""
    waits = [asyncio.create_task(event.wait()) for event in (stop, server.supervisor.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if server.supervisor.failed.is_set():
        print_error(f"a bug in kvfence: {server.supervisor.failure}. Please report it (CONTRIBUTING.md)")
        return int(ExitCode.OUR_FAULT)
    return int(ExitCode.NOTHING_FOUND)


def _describe(workers: WorkerSettings) -> str:
    counts = ((workers.prefill, "prefill"), (workers.decode, "decode"))
    return " and ".join(f"{number} {role} worker{'s' if number > 1 else ''}" for number, role in counts)
