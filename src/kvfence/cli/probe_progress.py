"""What a probe is going to send, and how far it is: a bar with live counts on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from kvfence.cli.render import console, print_note, print_table
from kvfence.evidence.visible import plain

if TYPE_CHECKING:
    from kvfence.probe.budget import Budget
    from kvfence.probe.door import Door
    from kvfence.probe.plan import Plan
    from kvfence.probe.stage import Stage

EVERY_S = 0.1
LINE_EVERY = 50


def show_plan(door: "Door", budget: "Budget", plan: "Plan") -> None:
    """Say on stderr what will be sent and what that comes to."""
    print_table(
        title_of(door), ("phase", "requests", "tokens"), [(str(s.phase), s.requests, s.tokens) for s in plan.shares]
    )
    known = "the context that it names" if plan.context_known else "it names no context; this is a guess"
    print_note(
        f"at most {plan.requests:,} requests, {budget.concurrency} open at once, about {plan.tokens_in:,} tokens of "
        f"prompts and {plan.tokens_out:,} of answers; prompts up to {plan.context:,} tokens ({known}) and above"
    )
    if plan.cost is None:
        print_note("no price was given (--price-in, --price-out, per million tokens), so no cost is told")
    else:
        print_note(f"that costs roughly {plan.cost:,.2f} at the prices given")
    if plan.shrunk:
        print_note(f"phases are smaller than their requests: {plan.shrunk}")


def title_of(door: "Door") -> str:
    """Word where a run goes: the model's name may be the server's own word, and holds whatever it likes."""
    return plain(f"to {door.base_url}, model {door.model or '(the first it lists)'}")


class Progress:
    """Shows a stage as it changes."""

    def __init__(self) -> None:
        self._console = console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown_s = 0.0
        self._phase = ""
        self._lines = 0

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def see(self, stage: "Stage") -> None:
        """Take a change."""
        now = time.monotonic()
        if self._console.is_terminal:
            if now - self._shown_s >= EVERY_S:
                self._shown_s = now
                self._live.update(Text(line_of(stage)), refresh=True)
        elif str(stage.phase) != self._phase or len(stage.exchanges) >= self._lines + LINE_EVERY:
            self._phase, self._lines = str(stage.phase), len(stage.exchanges)
            print_note(line_of(stage))


def line_of(stage: "Stage") -> str:
    """Word how far a run is."""
    tally = stage.tally
    planned = stage.plan.requests if stage.plan else stage.budget.requests_max
    refused = tally.troubles.get("refused", 0)
    others = sum(count for name, count in tally.troubles.items() if name not in ("refused", "left", "limited"))
    return (
        f"probe: {stage.phase} {tally.total:,} of {planned:,} sent, {stage.pacer.in_flight} open, {refused:,} refused, "
        f"{stage.pacer.refused:,} asked to wait, {others:,} troubles, {tally.tokens_in + tally.tokens_out:,} tokens, "
        f"{stage.alarms:,} answers with another tenant's marker"
    )
