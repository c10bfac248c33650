"""A model with windows in a guarded pair: three KV cache groups over the same blocks, with vLLM's own kernels."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import cases
import pytest
import torch
import traces
from conftest import RELEASE, ROLES, TRACES, fenced
from judge import Judge
from msgspec.structs import replace
from pair import Pair, Site, Sizes, handed_off, running
from test_guard import NEAR, decisions, refused
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

pytestmark = pytest.mark.timeout(2400)

WINDOW = 64
"""Tokens: two blocks."""

HONEST = 40

WITHOUT_A_SAFE_FAILURE = "0.29.0"


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory, site: Site, key: str) -> Site:
    """A guarded site with a small checkpoint of random weights: of three layers two look back a window."""
    folder: Path = tmp_path_factory.mktemp("windowed")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(site.model / name, folder)
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=49_152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        max_position_embeddings=Sizes().context,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return replace(fenced(site, "enforce", key, folder), model=folder)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory, windowed: Site) -> Iterator[Pair]:
    """A pair of it."""
    with running(dict.fromkeys(ROLES, windowed), Sizes(), tmp_path_factory.mktemp("hybrid")) as both:
        yield both.pair()


@pytest.mark.skipif(RELEASE != WITHOUT_A_SAFE_FAILURE, reason="later releases can fail a receive as a whole")
def test_it_does_not_start_where_a_receive_could_not_fail(tmp_path: Path, windowed: Site) -> None:
    """Refused by name, before it serves."""
    with pytest.raises(SystemExit, match="ended at its start"), running({"decode": windowed}, Sizes(), tmp_path):
        pass
    assert "several KV cache groups has no safe failure path" in (tmp_path / "decode.log").read_text(encoding="utf-8")


@pytest.mark.skipif(RELEASE == WITHOUT_A_SAFE_FAILURE, reason="refused by name")
class TestWhereItStarts:
    """Later releases."""

    def test_honest_requests_are_verified_and_answered_from_their_own(self, hybrid: Pair, windowed: Site) -> None:
        """Forty, eight at once, within a window and beyond it: judged by transformers, and none refused."""

        def one(number: int) -> Any:
            words = " ".join(f"item {number} {each}" for each in range(1 + number))
            return handed_off(hybrid, f"List {number}: {words}. Next:", 6, return_token_ids=True)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(one, range(HONEST)))
        assert {answer.status_code for answer in answers} == {200}
        assert decisions(hybrid.decode, "pass", guard="digest-matches") == HONEST
        assert decisions(hybrid.decode, "refuse") == 0
        said = [answer.json()["choices"][0] for answer in answers[::4]]
        assert max(len(each["prompt_token_ids"]) for each in said) > 2 * WINDOW
        judge = Judge(windowed.model)
        assert max(judge.gap(each["prompt_token_ids"], each["token_ids"]) for each in said) < NEAR
        others = [judge.gap(other["prompt_token_ids"], each["token_ids"]) for each, other in pairwise(said)]
        assert median(others) > NEAR

    @pytest.mark.parametrize(
        ("case", "guard"),
        [
            (cases.short_count, "stamp-at-adopt"),
            (cases.one_block_too_many, "stamp-at-adopt"),
            (cases.one_block_too_few, "stamp-at-adopt"),
            (cases.forged, "stamp-at-adopt"),
            (cases.replayed, "attempt-is-current"),
            (cases.stale, "digest-matches"),
        ],
    )
    def test_a_bad_hand_off_is_refused(self, hybrid: Pair, case: Callable[[Pair, str], Any], guard: str) -> None:
        """Each ends with an error of its own request, and decode goes on."""
        refused(hybrid, guard, lambda: case(hybrid, f"hybrid {case.__name__}"))

    def test_the_traces_conform(self, hybrid: Pair, windowed: Site) -> None:
        """Of both roles."""
        found = traces.rulings(windowed.model / TRACES)
        assert sorted(found) == [("decode", "conforming"), ("prefill", "conforming")]
