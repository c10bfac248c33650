"""Text to ids and back: bounded work, whole characters, templates that leak nothing."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvfence.core.errors import ModelError
from kvfence.models.tokenizer import SLICE_CHARS, Tokenizer, load_tokenizer
from kvfence.models.toy import EOS, write_toy_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkpoint."""
    return write_toy_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    """The toy's tokenizer."""
    return load_tokenizer(checkpoint)


class CountingEncoder:
    """Stands for the inner tokenizer and counts the characters it was asked to encode."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.num_chars = inner, 0

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        self.num_chars += len(text)
        return self.inner.encode(text, add_special_tokens=add_special_tokens)


def test_loading_and_using_a_tokenizer_imports_no_torch(checkpoint: Path) -> None:
    """The gateway's process stays without torch."""
    code = (
        "import sys; from pathlib import Path; from kvfence.models.tokenizer import load_tokenizer;"
        "t = load_tokenizer(Path(sys.argv[1])); t.encode(t.render_chat([{'role': 'user', 'content': 'x'}]), 9);"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(checkpoint)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_encode_stops_early(tokenizer: Tokenizer) -> None:
    """Of megabytes of text only the beginning is tokenised, and the answer is one id more than fits."""
    counting = CountingEncoder(tokenizer._inner)
    bounded = Tokenizer(counting, tokenizer._facts, None)
    assert len(bounded.encode("the cat and " * 200_000, 512)) == 513
    assert counting.num_chars <= 2 * SLICE_CHARS


@pytest.mark.parametrize("text", ["the cat " * 5000, "x" * 40_000, "é€ 12 " * 8000])
def test_encode_is_exact_where_the_text_fits(tokenizer: Tokenizer, text: str) -> None:
    """A long text that fits has the ids of the whole, whatever slices were tried; one token less does not fit."""
    whole = tokenizer._inner.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, len(whole)) == whole
    assert len(tokenizer.encode(text, len(whole) - 1)) == len(whole)


def test_longest_token_bounds_every_text(tokenizer: Tokenizer) -> None:
    """No text has fewer tokens than its bytes divided by the longest token."""
    for text in ["    " * 100, "the the the", "€" * 50, "<|endoftext|>" * 20]:
        num_bytes = len(text.encode())
        assert len(tokenizer.encode(text, 10_000)) >= num_bytes / tokenizer.longest_token_bytes


def test_longest_token_proves_nothing_where_text_may_vanish(checkpoint: Path, tmp_path: Path) -> None:
    """A tokenizer whose special token swallows white space makes no promise about bytes."""
    write_toy_checkpoint(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["added_tokens"][0]["rstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert load_tokenizer(tmp_path).longest_token_bytes == sys.maxsize
    assert load_tokenizer(checkpoint).longest_token_bytes < 100


def test_special_tokens(tokenizer: Tokenizer) -> None:
    """The end token is read from the checkpoint; a special token in text is one id, as in other servers."""
    assert tokenizer.eos_token_ids == {EOS}
    assert tokenizer.encode("<|im_end|>", 9) == [EOS]


def test_a_lone_surrogate_does_no_harm(tokenizer: Tokenizer) -> None:
    """Half a character, as JSON escapes allow, becomes a question mark."""
    assert tokenizer.decode(tokenizer.encode("a\ud83d é", 99)) == "a? é"


def test_detokenizer_gives_whole_characters_only(tokenizer: Tokenizer) -> None:
    """Tokens of single bytes give nothing until their character is complete."""
    ids = tokenizer.encode("a€é🙂", 99)
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push([token]) for token in ids] == ["a", "", "", "€", "", "é", "", "", "", "🙂"]
    assert detokenizer.flush() == ""


def test_detokenizer_flushes_an_incomplete_character(tokenizer: Tokenizer) -> None:
    """What was cut off in the middle of a character shows as a replacement character at the end."""
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(tokenizer.encode("a€", 99)[:-1]) == "a"
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("seed", range(20))
def test_pieces_join_to_the_whole_text(tokenizer: Tokenizer, seed: int) -> None:
    """Random ids, most of them no UTF-8, pushed in random groups, give exactly the text of all ids at once."""
    draw = random.Random(seed)
    ids = [draw.randrange(tokenizer.vocab_size) for _ in range(300)]
    detokenizer = tokenizer.detokenizer()
    pieces, at = [], 0
    while at < len(ids):
        size = draw.randrange(1, 5)
        pieces.append(detokenizer.push(ids[at : at + size]))
        at += size
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)
    assert len(detokenizer._window) < 100


def test_chat_template(tokenizer: Tokenizer) -> None:
    """A chat becomes the prompt that ends where the assistant begins."""
    prompt = tokenizer.render_chat([{"role": "user", "content": "hello"}])
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


TEMPLATES = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ raise_exception('no: ' + messages[0]['content']) }}": "refuses these messages",
    "{{ messages[0]['content'] + 1 }}": "cannot use these messages",
    "{{ messages[0].__class__.__mro__ }}": "refuses these messages",
    "{{ messages[0]['missing']['content'] }}": "refuses these messages",
}


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_a_template_that_fails_shows_no_prompt(template: str, tmp_path: Path) -> None:
    """A refusal is a ValueError that gives the template's literal reason at most, never a message's text."""
    write_toy_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=TEMPLATES[template]) as caught:
        load_tokenizer(tmp_path).render_chat([{"role": "user", "content": "SECRET"}])
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": {}}'),
        ("tokenizer_config.json", "[]"),
        ("chat_template.jinja", "{% for %}"),
        ("config.json", '{"model_type": "mamba"}'),
    ],
)
def test_a_bad_file_is_named(name: str, text: str, tmp_path: Path) -> None:
    """A checkpoint with one bad file is refused with a message that names the file or the family."""
    write_toy_checkpoint(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer|template|mamba"):
        load_tokenizer(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A folder that is no checkpoint is refused with what is missing."""
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing"):
        load_tokenizer(tmp_path)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    """Chat on a base model is refused with the endpoint to use instead."""
    write_toy_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="/v1/completions"):
        load_tokenizer(tmp_path).render_chat([])
