"""What an answer must match: JSON schemas to grammars, and grammars to masks over a tokenizer. No torch.

llguidance does both. Its own messages may quote a client's schema, so that none of them leaves this module, and its
warnings, which it prints, are off. Bounds are counts of its work, not seconds: the same schema fares alike everywhere.
Not for: which tokens are chosen (``sampling.py``).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

SCHEMA_BYTES_MAX = 64 << 10
WHITESPACE = r"\n?[ ]{0,24}"
"""Between JSON's tokens: enough to indent, too little for a model to wander in."""

LEXER_FUEL_MAX = 1_000_000
"""About 20 ms of building."""
STEP_FUEL_MAX = 200_000
STEP_ITEMS_MAX = 50_000
GRAMMAR_SYMBOLS_MAX = 20_000
"""Building takes time that grows with the square of an object's properties: below a second for so many."""
LEXER_STATES_MAX = 50_000
"""At most 100 MB for one grammar."""

_KEYWORDS = frozenset(
    {
        *("contains", "dependentRequired", "dependentSchemas", "dependencies", "else", "format", "if", "maxContains"),
        *(
            "maxProperties",
            "minContains",
            "minProperties",
            "multipleOf",
            "not",
            "oneOf",
            "pattern",
            "patternProperties",
        ),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
        *("$ref", "$dynamicRef", "$anchor", "$dynamicAnchor", "$recursiveRef"),
    }
)
"""Words of JSON Schema itself, which may be named to a client."""


class GrammarRefused(ValueError):
    """A schema that cannot be enforced; says why without quoting it."""


def grammar_of_schema(schema: msgspec.Raw | bytes) -> str:
    """Give the grammar of a JSON schema, once its first token could be found.

    Raises:
        GrammarRefused: too large, no object, unknown or unsatisfiable parts, or too costly.
    """
    from llguidance import LLMatcher

    text = bytes(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise GrammarRefused(f"it is larger than {SCHEMA_BYTES_MAX} bytes")
    try:
        grammar = str(LLMatcher.grammar_from_json_schema(text.decode(), overrides={"whitespace_pattern": WHITESPACE}))
    except ValueError:
        raise GrammarRefused("it is not a JSON object that can be read; nest it less deeply") from None
    _try_out(grammar)
    return grammar


def _try_out(grammar: str) -> None:
    """Compile over single bytes, which costs next to nothing, and look for a first token."""
    matcher = _new_matcher(_byte_tokenizer(), grammar)
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error() or not any(mask):
        raise GrammarRefused(_explain(str(matcher.get_error())))


def _explain(message: str) -> str:
    named = sorted(set(re.findall(r"[$\w]+", message)) & _KEYWORDS)
    words = f" (about: {', '.join(named)})" if named else ""
    if "nsatisfiable" in message or message.startswith("NoExtension"):
        return "nothing can satisfy it"
    if "Unimplemented" in message or "regex parse" in message or "Unknown format" in message:
        return f"it uses a part of JSON Schema that is not supported{words}"
    return f"it is not a valid JSON schema, or too complex{words}"


_byte_tokenizers: list[Any] = []


def _byte_tokenizer() -> Any:
    if not _byte_tokenizers:
        from llguidance import LLTokenizer

        _byte_tokenizers.append(LLTokenizer("byte"))
    return _byte_tokenizers[0]


def _new_matcher(tokenizer: Any, grammar: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        initial_lexer_fuel=LEXER_FUEL_MAX,
        step_lexer_fuel=STEP_FUEL_MAX,
        step_max_items=STEP_ITEMS_MAX,
        max_grammar_size=GRAMMAR_SYMBOLS_MAX,
        max_lexer_states=LEXER_STATES_MAX,
        verbose_errors=False,
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def broken(self) -> bool:
        """Did an earlier token not match, or was a bound passed?"""
        return bool(self._inner.is_error())

    @property
    def complete(self) -> bool:
        """May nothing follow but an end?"""
        return bool(self._inner.is_stopped()) and not self.broken

    def mask(self) -> bytes:
        """Give one bit for each token that may come next, the lowest bit of a byte first."""
        return bytes(self._inner.compute_bitmask())

    def take(self, token_ids: Sequence[int]) -> None:
        """Move on past chosen tokens."""
        self._inner.consume_tokens(list(token_ids))


class GrammarTokens:
    """One tokenizer as llguidance reads it: loaded at the first grammar, which takes about 10 us a token."""

    def __init__(self, model_path: Path, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._path, self._vocab_size, self._eos = model_path, vocab_size, sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def matcher(self, grammar: str, answer: Sequence[int]) -> Matcher:
        """Compile a grammar and move on past what has been generated.

        Raises:
            OSError, ValueError: the tokenizer cannot be read.
        """
        matcher = Matcher(_new_matcher(self._load(), grammar))
        matcher.take(answer)
        return matcher

    def _load(self) -> Any:
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                text = (self._path / "tokenizer.json").read_text(encoding="utf-8")
                num_tokens = self._vocab_size
                self._tokenizer = LLTokenizer(text, n_vocab=num_tokens, eos_token=self._eos or None)
            return self._tokenizer
