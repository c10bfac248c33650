"""Makes the samplers of a worker's sequences; grammars are compiled in one thread of their own, one after the other, so
that a slow one holds up no pass, but only its own sequence and those whose grammars come after it.

Not for: what a sampler does (``models/sampler.py``, ``models/sampling.py``).
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvfence.core.request import Past, SamplingParams
from kvfence.models.executor import Executor
from kvfence.models.grammar import GrammarTokens
from kvfence.models.sampler import Sampler


class Samplers:
    """One worker's. ``wake`` is called, from another thread, once a sampler has become ready."""

    def __init__(self, model_path: str, executor: Executor, wake: Callable[[], None]) -> None:
        self._ends = executor.eos_token_ids
        self._grammars = GrammarTokens(Path(model_path), executor.vocab_size, executor.eos_token_ids)
        self._wake = wake
        self._thread: ThreadPoolExecutor | None = None

    def make(self, params: SamplingParams, past: Past) -> Sampler | None:
        """Give a sequence's sampler, to be used once ``ready``; None where nothing is asked for that needs one."""
        if params.is_plain:
            return None
        sampler = Sampler(params, past, self._ends)
        if params.grammar:
            self._thread = self._thread or ThreadPoolExecutor(1, "grammar")
            self._thread.submit(self._compile, sampler, past)
        return sampler

    def _compile(self, sampler: Sampler, past: Past) -> None:
        """Give a sampler its matcher. One that gets none is broken, and its sequence ends at its next token."""
        try:
            sampler.matcher = self._grammars.matcher(sampler.params.grammar, past.answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this sequence ends; the message may quote it
            sys.stderr.write(f"a grammar could not be compiled: {type(error).__name__}\n")
        sampler.ready = True
        self._wake()


def is_ready(sampler: Sampler | None) -> bool:
    """May a pass choose a token of this sequence now?"""
    return sampler is None or sampler.ready
