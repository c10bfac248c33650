"""What a search found, as a document and as text."""

from collections.abc import Iterator
from typing import Any

import msgspec

from kvfence.prove.bounds import Bounds
from kvfence.prove.search import Result
from kvfence.prove.story import Story


def document(bounds: Bounds, result: Result, stories: list[Story]) -> dict[str, Any]:
    """Give what ``--json`` prints."""
    return {
        "exhausted": result.exhausted,
        "verdict": verdict(result),
        "bound": result.bound,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "at_rest": result.at_rest,
        "steps": result.steps,
        "cpu_s": round(result.cpu_s, 3),
        "states_per_cpu_s": round(result.states / max(result.cpu_s, 1e-9)),
        "peak_bytes": result.peak_bytes,
        "bounds": bounds_document(bounds),
        "broken": [story.property for story in stories],
        "trace": msgspec.to_builtins(stories[0].moments) if stories else [],
        "stories": msgspec.to_builtins(stories),
        "reached": sorted(result.reached),
    }


def verdict(result: Result) -> str:
    """Say FAIL, PASS within the bounds, or UNKNOWN."""
    if result.broken:
        return "FAIL"
    return "PASS" if result.exhausted else "UNKNOWN"


def bounds_document(bounds: Bounds) -> dict[str, Any]:
    """Give the bounds of a search as they are told."""
    capacity = bounds.capacity
    return {
        "requests": [msgspec.to_builtins(asked) for asked in bounds.requests],
        "page_size": capacity.page_size,
        "prefill_pages": capacity.prefill_pages,
        "decode_pages": capacity.decode_pages,
        "context_tokens": capacity.context_tokens,
        "faults": sorted(bounds.faults),
        "faults_max": bounds.faults_max,
        "setups": sorted(bounds.setups),
        "asking_max": bounds.asking_max or len(bounds.requests),
        "fence": bounds.fence.value,
        "lands_in_order": bounds.in_order,
        "settled": bounds.settled,
        "guards_away": sorted(bounds.rules.absent),
    }


def lines_of(story: Story) -> Iterator[str]:
    """Give a story as text, the pages drawn below each step."""
    when = " (nothing is left to happen)" if story.at_rest else ""
    yield f"{story.property} is broken{when}: {story.statement}"
    yield "Each page: pool, number, what its node says of it (# serial) | head | bytes | tail; * changed in this step."
    for moment in story.moments:
        yield ""
        yield f"{moment.number:>3}  {moment.text}"
        for guard in moment.guards:
            yield f"     guard {guard}"
        for name in moment.broken:
            yield f"     BROKEN: {name}"
        for page in moment.pages:
            yield f"    {page.line}"
