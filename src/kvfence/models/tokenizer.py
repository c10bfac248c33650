"""Text to token ids and back, for the gateway: no torch, and never more work than the context allows.

Special tokens that stand in a client's text become special tokens, as in other servers: a chat template's own
markers can be written by a client, and reach only that client's own prompt.

Not for: stop strings (``gateway``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvfence.core.errors import ModelError
from kvfence.models.chat import ChatRefused, ChatTemplate
from kvfence.models.checkpoint import read_facts, read_json
from kvfence.models.token_bytes import spelling_of
from kvfence.models.tool_formats import ToolFormat

SLICE_CHARS = 16384
"""Text up to this long is tokenised whole; longer text first in slices, to stop early."""

SLICE_SLACK_TOKENS = 64
"""Far more than one cut adds to the count of the whole."""

WINDOW_TOKENS = 32
"""Ids a detokenizer decodes again with each new one, at most about this many; it then keeps ``WINDOW_KEPT``."""

WINDOW_KEPT = 8
UNSTABLE_CHARS_MAX = 3
"""A character has at most four bytes, so at most three bytes wait for the rest."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_EXPANDING = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
_EXPANSION_MAX = 4


class TokenizerFacts(Struct, frozen=True):
    """What is fixed at load.

    Units:
        longest_token_bytes: no token stands for more bytes of text, so a text of n bytes has at least
            n / longest_token_bytes tokens; ``sys.maxsize`` where the tokenizer may drop text.
    ``spelling``: gives the bytes of a token that was not added to the vocabulary as a whole word.
    """

    vocab_size: int
    longest_token_bytes: int
    eos_token_ids: frozenset[int]
    added_ids: frozenset[int] = frozenset()
    spelling: Callable[[str], bytes] = str.encode


class Tokenizer:
    """A checkpoint's tokenizer and chat template."""

    def __init__(self, inner: Any, facts: TokenizerFacts, template: ChatTemplate | None) -> None:
        self._inner, self._facts, self._template = inner, facts, template

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._facts.vocab_size

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text."""
        return self._facts.longest_token_bytes

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return self._facts.eos_token_ids

    def encode(self, text: str, num_tokens_max: int, *, add_special: bool = False) -> list[int]:
        """Tokenise, stopping once the text is known to be too long; lone surrogates count as question marks.

        Returns:
            The ids; or, where there are more than ``num_tokens_max``, just ``num_tokens_max + 1`` ids,
            which say no more than that.
        """
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()
        if len(text) > SLICE_CHARS:
            begun = self._encode_beginning(text, num_tokens_max)
            if len(begun) > num_tokens_max:
                return begun[: num_tokens_max + 1]
        return self._ids(text, add_special)[: num_tokens_max + 1]

    @property
    def takes_tools(self) -> bool:
        """Does the chat template show tools to the model?"""
        return self._template is not None and self._template.takes_tools

    @property
    def tool_format(self) -> ToolFormat | None:
        """How this model writes calls, where that is known."""
        return self._template.tool_format if self._template is not None else None

    def token_bytes(self, token_id: int) -> bytes:
        """Give the bytes that one token stands for; of a special token, its name."""
        token = self._inner.id_to_token(token_id)
        if token is None:
            return b""
        return token.encode() if token_id in self._facts.added_ids else self._facts.spelling(token)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Give the prompt of a chat.

        Raises:
            ChatRefused: a ValueError: the template refuses the messages, or the model has none.
        """
        if self._template is None:
            raise ChatRefused("this model has no chat template; use /v1/completions")
        return self._template.render(messages, tools)

    def detokenizer(self, context: Sequence[int] = (), shown: Sequence[str] = ()) -> Detokenizer:
        """Begin to turn generated ids into text; ``context``: the prompt's last ids, for a leading space.

        ``shown``: special tokens whose names are text here, where others are left out.
        """
        names = {token_id: name for name in shown if (token_id := self._inner.token_to_id(name)) is not None}
        return Detokenizer(self._inner, context, names)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Give the text of ids at once, special tokens left out."""
        return str(self._inner.decode(list(token_ids), skip_special_tokens=True))

    def _ids(self, text: str, add_special: bool) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special).ids
        return ids

    def _encode_beginning(self, text: str, num_tokens_max: int) -> list[int]:
        """Tokenise slice by slice until more than fits, however the cuts fell; [] if it never is."""
        ids: list[int] = []
        slack = 0
        for piece in _slices(text):
            ids += self._ids(piece, False)
            slack += SLICE_SLACK_TOKENS
            if len(ids) > num_tokens_max + slack:
                return ids
        return []


class Detokenizer:
    """Turn generated ids into text as they come; only whole characters leave.

    The texts of all pushes and the flush, joined, are the text of all ids at once (with byte-level tokenizers; those
    with byte fallback may show other replacement characters where bytes are no UTF-8).
    """

    def __init__(self, inner: Any, context: Sequence[int] = (), names: Mapping[int, str] | None = None) -> None:
        self._inner, self._names = inner, names or {}
        self._window = list(context)[-WINDOW_KEPT:]
        self._num_sent = len(self._decode(self._window))

    def push(self, token_ids: Iterable[int]) -> str:
        """Take more ids; give the text that is complete by now, often nothing."""
        return "".join(self._push(token_id) for token_id in token_ids)

    def flush(self) -> str:
        """Give what is left; an incomplete character becomes U+FFFD."""
        text = self._decode(self._window)
        rest, self._num_sent = text[self._num_sent :], len(text)
        return rest

    def _push(self, token_id: int) -> str:
        if token_id in self._names:
            rest = self.flush()
            self._window, self._num_sent = [], 0
            return rest + self._names[token_id]
        self._window.append(token_id)
        text = self._decode(self._window)
        num_stable = len(text) - _num_unstable(text)
        out = text[self._num_sent : num_stable]
        self._num_sent = max(self._num_sent, num_stable)
        if len(self._window) > WINDOW_TOKENS:
            self._trim(text)
        return out

    def _trim(self, text: str) -> None:
        """Forget ids before a border at which the rest decodes as it did within the whole."""
        for num_kept in range(WINDOW_KEPT, WINDOW_TOKENS):
            rest = self._decode(self._window[-num_kept:])
            num_gone = len(text) - len(rest)
            if text.endswith(rest) and num_gone <= self._num_sent:
                self._window, self._num_sent = self._window[-num_kept:], self._num_sent - num_gone
                return

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._inner.decode(token_ids, skip_special_tokens=True))


def _num_unstable(text: str) -> int:
    """Count the trailing replacement characters that the next ids may still turn into a character."""
    tail = text[-UNSTABLE_CHARS_MAX:]
    return len(tail) - len(tail.rstrip(_REPLACEMENT))


def load_tokenizer(path: Path, *, runs_here: bool = True) -> Tokenizer:
    """Load tokenizer.json, the special tokens' names and the chat template of a checkpoint folder.

    ``runs_here``: else the model may be of any family, and which tokens end a sequence is not ours to know.

    Raises:
        ModelError: a file is missing or unreadable.
    """
    import tokenizers

    spec = read_json(path / "tokenizer.json")
    try:
        inner = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelError(
            f"{path / 'tokenizer.json'}: not a tokenizer ({error}). Fetch the checkpoint again."
        ) from error
    inner.no_truncation()
    inner.no_padding()
    config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
    facts = TokenizerFacts(
        vocab_size=inner.get_vocab_size(with_added_tokens=True),
        longest_token_bytes=_longest_token_bytes(spec, inner.get_vocab(with_added_tokens=True)),
        eos_token_ids=read_facts(path).eos_token_ids if runs_here else frozenset(),
        added_ids=frozenset(inner.get_added_tokens_decoder()),
        spelling=spelling_of(_kinds(spec.get("pre_tokenizer")) | _kinds(spec.get("decoder"))),
    )
    return Tokenizer(inner, facts, _load_template(path, config))


def _load_template(path: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    file = path / "chat_template.jinja"
    source: Any = config.get("chat_template")
    if file.exists():
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: unreadable ({type(error).__name__}). Fetch the checkpoint again.") from error
    if isinstance(source, list):
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    names = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return ChatTemplate(source, {name: text for name, text in names.items() if text is not None})


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _slices(text: str) -> Iterable[str]:
    at = 0
    while at < len(text):
        end = min(at + SLICE_CHARS, len(text))
        if end < len(text):
            space = text.rfind(" ", at + SLICE_CHARS // 2, end)
            end = space if space > at else end
        yield text[at:end]
        at = end


def _longest_token_bytes(spec: Mapping[str, Any], vocab: Mapping[str, int]) -> int:
    longest = max((len(token.encode("utf-8", "replace")) for token in vocab), default=1)
    kinds = _kinds(spec.get("normalizer")) | _kinds(spec.get("pre_tokenizer"))
    model = spec.get("model") or {}
    covers_all = bool(model.get("byte_fallback")) or "ByteLevel" in kinds | _kinds(spec.get("decoder"))
    strips = any(token.get("lstrip") or token.get("rstrip") for token in spec.get("added_tokens") or ())
    known = _EXPANDING | {"Prepend", "Replace", "ByteLevel", "Digits", "Split", "Metaspace", "Sequence"}
    if (
        not covers_all
        or strips
        or kinds - known
        or _removes(spec.get("pre_tokenizer"))
        or _removes(spec.get("normalizer"))
    ):
        return sys.maxsize
    return longest * (_EXPANSION_MAX if kinds & _EXPANDING else 1)


def _kinds(step: Any) -> set[str]:
    if not isinstance(step, dict):
        return set()
    parts = [part for key in ("normalizers", "pretokenizers", "decoders") for part in step.get(key) or ()]
    return {str(step.get("type"))}.union(*(_kinds(part) for part in parts))


def _removes(step: Any) -> bool:
    """Tell whether a normalizer or pre-tokenizer may make text shorter than tokens account for."""
    if not isinstance(step, dict):
        return False
    parts = [*(step.get("pretokenizers") or ()), *(step.get("normalizers") or ())]
    pattern = step.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    shrinks = step.get("type") == "Replace" and len(step.get("content", "")) < len(replaced or " " * 99)
    return step.get("behavior") == "Removed" or shrinks or any(_removes(part) for part in parts)
