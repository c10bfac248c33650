"""What goes into the next pass: pure choices over what is ready.

Not for: page ownership, which ``step`` decides after these choices.
"""

from collections.abc import Iterable

from msgspec import Struct

from kvfence.core.ids import AttemptId


class Chunk(Struct, frozen=True):
    """The next tokens of one prompt. Units: start, end are positions in the prompt; ``last``: the prompt ends here."""

    attempt: AttemptId
    start: int
    end: int
    last: bool


def next_chunks(prompts: Iterable[tuple[AttemptId, int, int]], tokens_max: int) -> list[Chunk]:
    """Fill one prefill pass, oldest prompt first.

    Shapes:
        prompts: (attempt, tokens computed, tokens in all), oldest first.
    """
    chunks: list[Chunk] = []
    room = tokens_max
    for attempt, computed, total in prompts:
        if room == 0:
            break
        end = min(total, computed + room)
        chunks.append(Chunk(attempt, computed, end, end == total))
        room -= end - computed
    return chunks


def next_sequences(running: Iterable[AttemptId], last: tuple[AttemptId, ...], sequences_max: int) -> list[AttemptId]:
    """Fill one decode pass; where not all fit, those left out of the last pass go first."""
    attempts = list(running)
    if len(attempts) <= sequences_max:
        return attempts
    went = set(last)
    attempts.sort(key=lambda attempt: attempt in went)
    return attempts[:sequences_max]
