"""The executor on a tiny random model: equal to ``generate``, however its passes and pages are cut."""

import json
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kvfence.core.errors import ModelError
from kvfence.core.invariant import InvariantBroken
from kvfence.core.request import SamplingParams
from kvfence.models.bundled import embedded_model
from kvfence.models.executor import PassRow
from kvfence.models.tokenizer import load_tokenizer
from kvfence.models.toy import write_toy_checkpoint
from kvfence.models.transformer import ExecutorSpec, TransformerExecutor, load_executor
from tests.paged_runner import GREEDY, Sequences, random_prompts, reference, strided_views

LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65] * 2
NUM_NEW = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkpoint."""
    return write_toy_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def executor(checkpoint: Path) -> TransformerExecutor:
    """The toy loaded in float32."""
    return load_executor(checkpoint, ExecutorSpec(dtype="float32", device="cpu", threads=1))


@pytest.fixture(scope="module")
def prompts(executor: TransformerExecutor) -> list[list[int]]:
    """32 ragged prompts."""
    return random_prompts(LENGTHS, executor.vocab_size)


@pytest.fixture(scope="module")
def expected(checkpoint: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What ``generate`` gives for them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return reference(model, prompts, NUM_NEW)


def test_reference_is_not_degenerate(expected: list[list[int]]) -> None:
    """The toy's greedy text differs between prompts and within each, so equality means something."""
    assert len({tuple(tokens) for tokens in expected}) > 20
    assert sum(len(set(tokens)) > NUM_NEW // 3 for tokens in expected) > len(expected) // 2


@pytest.mark.parametrize(("chunk", "concurrency"), [(1 << 30, 16), (7, 16), (16, 3), (1, 32)])
def test_greedy_equals_generate(
    executor: TransformerExecutor,
    prompts: list[list[int]],
    expected: list[list[int]],
    chunk: int,
    concurrency: int,
) -> None:
    """32 mixed-length prompts give generate's tokens with whole or chunked prefill, mixed passes, shuffled pages."""
    runner = Sequences(executor, 200, seed=chunk)
    assert runner.generate(prompts, NUM_NEW, chunk=chunk, concurrency=concurrency) == expected


def test_a_wrong_page_changes_tokens(
    executor: TransformerExecutor, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """With one page of a row exchanged for another sequence's, its tokens differ: equality is sensitive to pages."""
    num_changed = 0
    for victim, other in [(15, 13), (13, 14), (14, 15), (12, 13), (11, 12)]:
        Sequences(executor, 10)
        pages = list(range(executor.layout.num_pages(len(prompts[victim]) + 1)))
        whole = [page for page in pages if page < executor.layout.num_pages(len(prompts[victim]))]
        foreign = [5, 6, 7, 8, 9][: executor.layout.num_pages(len(prompts[other]))]
        rows = [PassRow(prompts[victim], 0, whole, GREEDY), PassRow(prompts[other], 0, foreign, GREEDY)]
        token = executor.run(rows)[0] or 0
        for wrong in (pages, [5, *pages[1:]]):
            got = executor.run([PassRow([token], len(prompts[victim]), wrong, GREEDY, 1)])
            if wrong == pages:
                assert [token, *got] == expected[victim][:2]
        num_changed += got != expected[victim][1:2]
    assert num_changed >= 4


def test_pages_outside_the_rows_are_untouched_and_unread(
    executor: TransformerExecutor, prompts: list[list[int]]
) -> None:
    """NaN in every page that no row names neither spreads into tokens nor is overwritten."""
    views = strided_views(executor.layout, 32)
    executor.bind(views)
    rows = [PassRow(prompts[9], 0, [30, 7], GREEDY), PassRow(prompts[3], 0, [2], GREEDY)]
    tokens = executor.run(rows)
    executor.run([PassRow([tokens[0] or 0], 32, [30, 7, 11], GREEDY), PassRow([tokens[1] or 0], 5, [2], GREEDY)])
    for view in views:
        written = {int(page) for page in (~view.isnan()).flatten(1).any(1).nonzero()}
        assert written == {30, 7, 2, 11}
        assert not view[[30, 7, 2, 11]].isnan().any()


def test_a_seed_draws_the_same_tokens_in_any_batch(executor: TransformerExecutor, prompts: list[list[int]]) -> None:
    """Sampled tokens depend on the logits, the seed and the index, not on neighbours or chunking."""
    params = [SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=7 + i) for i in range(6)]
    together = Sequences(executor, 100).generate(prompts[5:11], 8, sampling=params)
    chunked = Sequences(executor, 100, seed=5).generate(prompts[5:11], 8, sampling=params, chunk=5)
    alone = [Sequences(executor, 100).generate([prompts[5 + i]], 8, sampling=[params[i]])[0] for i in range(6)]
    assert together == chunked == alone
    other = Sequences(executor, 100).generate(prompts[5:6], 8, sampling=[SamplingParams(temperature=0.9, seed=99)])
    assert other[0] != alone[0]


def test_bfloat16_runs_and_mostly_agrees(checkpoint: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """The bfloat16 model gives the float32 model's first token for most prompts."""
    executor = load_executor(checkpoint, ExecutorSpec(dtype="bfloat16", device="cpu"))
    assert {segment.dtype for segment in executor.layout.segments} == {"bfloat16"}
    got = Sequences(executor, 200).generate(prompts, 1)
    assert sum(a[0] == b[0] for a, b in zip(got, expected, strict=True)) >= 24


@pytest.mark.parametrize(
    "row", [PassRow([], 0, []), PassRow([4, 5], 15, [1]), PassRow([4], 0, [1, 2]), PassRow([4], -1, [])]
)
def test_a_row_that_its_pages_do_not_cover_is_our_bug(executor: TransformerExecutor, row: PassRow) -> None:
    """A row without tokens, or with too few or too many pages, breaks an invariant before anything is written."""
    Sequences(executor, 4)
    with pytest.raises(InvariantBroken):
        executor.run([row])


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing", "wrong shape"])
def test_a_corrupt_model_file_is_a_clear_error(damage: str, tmp_path: Path) -> None:
    """Weights that are cut off, overwritten, absent or of another shape are refused with the folder's name."""
    path = write_toy_checkpoint(tmp_path / "toy")
    weights = path / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "garbage":
        weights.write_bytes(b"\xff" * 4096)
    elif damage == "missing":
        weights.unlink()
    else:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 80}))
    with pytest.raises(ModelError, match=r"toy: the model does not load"):
        load_executor(path, ExecutorSpec())


def test_missing_tensors_are_refused(tmp_path: Path) -> None:
    """A checkpoint without some of its weights is refused: they would be random."""
    path = write_toy_checkpoint(tmp_path / "toy")
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="k_proj"):
        load_executor(path, ExecutorSpec())


@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers"])
def test_a_config_that_contradicts_itself_is_a_clear_error(key: str, tmp_path: Path) -> None:
    """What transformers refuses with errors of its own kind is refused as a model that is wrong."""
    path = write_toy_checkpoint(tmp_path / "toy")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, key: 5 if key == "num_attention_heads" else "three"}))
    with pytest.raises(ModelError, match="does not load"):
        load_executor(path, ExecutorSpec())


def test_weights_that_are_programs_are_a_clear_error(tmp_path: Path) -> None:
    """A pickle in the place of weights is not run, and refused as a model that is wrong."""
    path = write_toy_checkpoint(tmp_path / "toy")
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ModelError, match="does not load"):
        load_executor(path, ExecutorSpec())


@pytest.mark.parametrize(
    ("spec", "message"), [(ExecutorSpec(device="cuda"), "CUDA"), (ExecutorSpec(dtype="int4"), "int4")]
)
def test_settings_that_cannot_be_met_are_named(
    checkpoint: Path, spec: ExecutorSpec, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is not here, or a dtype that is none of ours, is refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        load_executor(checkpoint, spec)


@pytest.mark.embedded
def test_the_embedded_model_equals_generate() -> None:
    """The embedded model, in float32, gives generate's tokens for ragged prompts, chunked and in mixed passes."""
    path = embedded_model(lambda *_: None)
    tokenizer = load_tokenizer(path)
    executor = load_executor(path, ExecutorSpec(dtype="float32", device="cpu", threads=1))
    questions = ["What is the capital of France?", "Count to five.", "Hi", "Name three fruits that are red, please."]
    prompts = [tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": text}]), 999) for text in questions]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    got = Sequences(executor, 40).generate(prompts, 8, chunk=20, concurrency=3)
    assert got == reference(model, prompts, 8)
    assert "Paris" in tokenizer.decode(got[0])
