"""What tools do to lines changes no fact; half a line gives no half a number."""

import gzip
import json
from collections.abc import Callable

import pytest
from backports import zstd

from tests.audit.evidence.records import BY_ID, RECORDS, TEXTS, document_of, ident, wrong

WRAPPINGS: dict[str, Callable[[str], str]] = {
    "cri": lambda line: f"2026-01-01T00:00:00.000000000Z stdout F {line}",
    "docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}),
    "json": lambda line: json.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": "INFO", "message": line}),
    "json fields": lambda line: json.dumps({"ts": "1", "fields": {"message": line}}),
    "kubectl": lambda line: f"[pod/decode-0/main] {line}",
    "compose": lambda line: f"prefill-1  | {line}",
    "markdown": lambda line: f"> {line}",
    "indented": lambda line: f"    {line}",
    "code": lambda line: f"- `{line}`" if "`" not in line else line,
    "colour": lambda line: f"\x1b[32m{line}\x1b[0m",
    "ray": lambda line: f"\x1b[36m(Worker pid=123, ip=10.0.0.1)\x1b[0m {line}",
    "crlf": lambda line: f"{line}\r",
    "progress bar": lambda line: f"Loading: 50%\rLoading: 100%\r{line}",
    "other lines": lambda line: f"I0101 00:00:00.000000 1 x.cc:1] other\n{line}",
    "journal": lambda line: f"Jan 01 00:00:00 host engine[123]: {line}",
    "nul": lambda line: f"\x00{line}",
    "not utf-8": lambda line: f"\udcff{line}",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("record", TEXTS, ids=ident)
def test_a_wrapping_changes_no_fact(record: dict, wrapping: str) -> None:
    """Colours, container runtimes, JSON logs, Markdown and prefixes change nothing."""
    lines = [WRAPPINGS[wrapping](line) for line in record["snippet"].split("\n")]
    assert wrong(record, document_of("\n".join(lines).encode("utf-8", "surrogateescape"))) == {}


@pytest.mark.parametrize("record", RECORDS, ids=ident)
def test_a_compressed_source_reads_alike(record: dict) -> None:
    """gzip and zstd are told from their first bytes; UTF-16 from its mark."""
    data = record["snippet"].encode()
    assert wrong(record, document_of(gzip.compress(data))) == {}
    assert wrong(record, document_of(zstd.compress(data))) == {}
    assert wrong(record, document_of(record["snippet"].encode("utf-16"))) == {}


def test_a_cut_off_archive_says_so() -> None:
    """What could be read of a broken gzip file counts, and the rest is called unknown."""
    data = gzip.compress((BY_ID["L001"]["snippet"] + "\n").encode() + bytes(range(256)) * 4000, mtime=0)
    document = document_of(data[:-2000])
    assert any("cannot be read to its end" in problem for problem in document["problems"])


def test_numbers_broken_by_a_terminal_are_joined() -> None:
    """A number that goes on in the next line is one number; a broken phrase is one phrase."""
    document = document_of(
        "[2026-01-01 00:00:00] max_total_num_tokens=38\n141, x=1, context_len=131\n072, available_gpu_mem=1 GB\n"
    )
    assert (document["pool_tokens"], document["context_len"]) == (38141, 131072)
    document = document_of("INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache\nsize: 30,960 tokens\n")
    assert document["pool_tokens"] == 30960


def test_a_line_cut_by_the_container_runtime_is_one_line() -> None:
    """Pieces that CRI or docker cut from a long line are put together."""
    args = "[2026-01-01 00:00:00] server_args=ServerArgs(page_size=64, disaggregation_mode='decode', tp_size=8)"
    at = args.index("disaggregation") + 4
    cri = f"2026-01-01T00:00:00.0Z stdout P {args[:at]}\n2026-01-01T00:00:00.0Z stdout F {args[at:]}\n"
    docker = (
        json.dumps({"log": args[:at], "stream": "stdout"})
        + "\n"
        + json.dumps({"log": args[at:] + "\n", "stream": "stdout"})
    )
    for text in (cri, docker):
        document = document_of(text)
        assert (document["role"], document["page_size"], document["tp_size"]) == ("decode", 64, 8)


# Where a number may end its line in the engine's own format, a cut inside it shows only as a remark.
OPEN_ENDED = {
    "L028", "L030", "L082", "L077", "L091", "L092", "L093", "L022", "L023", "L076", "L078", "L096", "L025", "L015",
    "L016", "L020", "L011", "L013",
}  # fmt: skip
LAST_HOLDS = {"L074"}


@pytest.mark.parametrize("record", [each for each in RECORDS if each["id"] not in OPEN_ENDED | LAST_HOLDS], ids=ident)
def test_a_cut_off_text_gives_no_half_number(record: dict) -> None:
    """Whatever is cut off the end, a value is the whole one or null."""
    text = record["snippet"]
    for end in range(0, len(text), 3):
        document = document_of(text[:end])
        for key, (expected, read) in wrong(record, document).items():
            assert read is None, (key, expected, read, text[:end][-60:])


@pytest.mark.parametrize("ident_", sorted(OPEN_ENDED - {"L082"}))
def test_a_value_at_the_very_end_is_remarked(ident_: str) -> None:
    """Where a cut cannot be told from a whole line, the wrong value comes with a remark."""
    text = BY_ID[ident_]["snippet"]
    for end in range(0, len(text), 5):
        document = document_of(text[:end])
        differing = [read for _, read in wrong(BY_ID[ident_], document).values() if read is not None]
        if differing and text[end : end + 1].isdigit() and text[end - 1 : end].isdigit():
            assert document["problems"], text[:end][-60:]
