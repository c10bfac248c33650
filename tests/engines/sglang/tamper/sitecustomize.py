"""Makes a prefill promise what is not so, for tests of what observing writes down of it.

On PYTHONPATH of a pair that a test starts so, and of nothing else: Python imports it by its name. ``TAMPER`` names a
file; the word in it says what the next promises are (``seen.tampering``), no word: as they should be.
"""

import os
from pathlib import Path
from typing import Any

FILE = os.environ.get("TAMPER")


def put_in(file: Path) -> None:
    """Stand between prefill and what it promises; whoever could do that has the key."""
    from msgspec.structs import replace

    from kvfence.guard.sglang.prefill import PrefillState

    promised, noted = PrefillState.promise, PrefillState.note_pages
    last: list[Any] = []

    def promise(state: Any, *given: Any) -> Any:
        word, honest = file.read_text(encoding="ascii"), promised(state, *given)
        if honest is None or word == "silence":
            return None
        changed = {
            "count": {"num_tokens": honest.num_tokens + 1, "num_pages": honest.num_pages + 1},
            "layout": {"layout": f"{honest.layout} and more"},
            "former": {"attempt": last[0] if last else honest.attempt},
        }
        last[:] = [honest.attempt]
        return replace(honest, **changed.get(word, {}))

    def note_pages(state: Any, room: int, pages: Any, row: Any) -> None:
        noted(state, room, pages, row)
        if file.read_text(encoding="ascii") == "bytes":
            state._memory._buffers[0][int(pages[-1]), 0] ^= 1

    PrefillState.promise, PrefillState.note_pages = promise, note_pages  # type: ignore[method-assign]


if FILE:
    put_in(Path(FILE))
