"""Grammars: what a schema allows is all that can be chosen, and what cannot be enforced is refused without quoting."""

import json
import time

import pytest
import torch

from kvfence.core.request import Past, SamplingParams
from kvfence.models.grammar import SCHEMA_BYTES_MAX, GrammarRefused, GrammarTokens, Matcher, grammar_of_schema
from kvfence.models.sampler import Sampler
from kvfence.models.sampling import sample
from kvfence.models.toy import EOS, write_toy_checkpoint

MARKER = "zebra-7731"
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": [1, 22, 333]}, "kind": {"enum": ["a", "b"]}},
    "required": ["size", "kind"],
    "additionalProperties": False,
}


def grammar(schema: object) -> str:
    """The grammar of a schema."""
    return grammar_of_schema(json.dumps(schema).encode())


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> GrammarTokens:
    """The toy's tokenizer as grammars see it."""
    return GrammarTokens(write_toy_checkpoint(tmp_path_factory.mktemp("toy")), 300, frozenset({EOS}))


def generate(tokens: GrammarTokens, schema: object, seed: int, answer: tuple[int, ...] = ()) -> list[int]:
    """Draw at random until the grammar is complete, from an answer so far."""
    params = SamplingParams(grammar=grammar(schema), seed=seed)
    sampler = Sampler(params, Past(list(answer)), frozenset({EOS}))
    sampler.matcher = tokens.matcher(params.grammar, answer)
    out = list(answer)
    while not sampler.complete:
        (token,) = sample(torch.zeros(1, 300), [params], [len(out)], [sampler])
        assert token is not None
        out.append(token)
    return out


def text_of(token_ids: list[int]) -> str:
    """Text of toy tokens, its end left out."""
    from kvfence.models.bytelevel import byte_alphabet
    from kvfence.models.toy import MERGES, SPECIAL

    vocab = [*SPECIAL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    back = {char: byte for byte, char in enumerate(byte_alphabet())}
    return bytes(back[char] for each in token_ids if each != EOS for char in vocab[each]).decode()


def test_any_draw_matches_the_schema(tokens) -> None:
    """Tokens drawn at random from the allowed ones alone give JSON of the schema, and then nothing more is allowed."""
    for seed in range(5):
        value = json.loads(text_of(generate(tokens, SCHEMA, seed)))
        assert value["size"] in (1, 22, 333)
        assert value["kind"] in ("a", "b")


def test_a_matcher_made_again_goes_on_where_the_first_stood(tokens) -> None:
    """However the answer was cut, the rest is drawn alike: the same seed gives the same whole."""
    whole = generate(tokens, SCHEMA, seed=1)
    assert all(generate(tokens, SCHEMA, 1, tuple(whole[:cut])) == whole for cut in range(0, len(whole) - 1, 3))


def test_a_grammar_that_cannot_be_followed_chooses_nothing(tokens) -> None:
    """After a token that does not match there is no choice, rather than a free one."""
    params = SamplingParams(grammar=grammar(SCHEMA))
    sampler = Sampler(params, Past(), frozenset({EOS}))
    assert sample(torch.zeros(1, 300), [params], [0], [sampler]) == [None]
    sampler.matcher = tokens.matcher(params.grammar, [EOS])
    assert sampler.broken
    assert sample(torch.zeros(1, 300), [params], [0], [sampler]) == [None]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": {"const": MARKER}}, "not supported (about: not)"),
        ({"type": "object", "propertyNames": {"pattern": MARKER}}, "not supported (about: propertyNames)"),
        ({"type": MARKER}, "not a valid JSON schema"),
        ({"type": "string", "pattern": f"(?={MARKER})"}, "not supported"),
        ({"type": "string", "format": MARKER}, "not supported"),
        ({"$ref": f"http://localhost/{MARKER}"}, "not a valid JSON schema"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "nothing can satisfy it"),
        ({"$defs": {MARKER: {"$ref": f"#/$defs/{MARKER}"}}, "$ref": f"#/$defs/{MARKER}"}, "nothing can satisfy it"),
        ([MARKER], "not a JSON object"),
        ({"enum": [MARKER * (SCHEMA_BYTES_MAX // 10)]}, "larger than"),
    ],
)
def test_what_cannot_be_enforced_is_refused_without_quoting(schema, says, capfd) -> None:
    """Each refusal says why, in words of its own; nothing is printed."""
    with pytest.raises(GrammarRefused) as caught:
        grammar(schema)
    assert says in str(caught.value)
    assert MARKER not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_deep_nesting_is_refused() -> None:
    """A schema nested beyond reason is a refusal, not a crash."""
    with pytest.raises(GrammarRefused):
        grammar_of_schema(b'{"items":' * 3000 + b"{}" + b"}" * 3000)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(.*a){12}.*[ab]{12}"},
        {"type": "string", "pattern": "((a{0,100}){0,100}){0,100}b"},
        {"type": "string", "pattern": "(a|aa)*(b|bb){0,5000}c{0,5000}"},
        {"type": "array", "minItems": 10**9, "items": {"anyOf": [{"const": f"v{n}"} for n in range(3000)]}},
        {"type": "object", "properties": {f"p{n}": {"enum": [f"v{m}" for m in range(9)]} for n in range(700)}},
        {"type": "object", "properties": {f"{n}": {} for n in range(4500)}},
    ],
)
def test_hostile_schemas_cost_little(schema, tokens) -> None:
    """The most that a schema of the allowed size was made to cost here stays far below a second."""
    began = time.process_time()
    try:
        matcher: Matcher = tokens.matcher(grammar(schema), ())
        for _ in range(5):
            allowed = [bit for bit in range(300) if matcher.mask()[bit // 8] >> bit % 8 & 1]
            if matcher.broken or not allowed:
                break
            matcher.take(allowed[-1:])
    except GrammarRefused:
        pass
    assert time.process_time() - began < 1.0
