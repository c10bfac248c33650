"""Hostile texts: nothing breaks, quotes are short and clean, a client's words are no evidence, secrets stay secret."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.evidence.gather import read_text
from kvfence.evidence.redact import redact
from tests.audit.evidence.records import document_of

SGLANG = "[2026-01-01 00:00:00] max_total_num_tokens=1000, x=1, context_len=2048, available_gpu_mem=1 GB\n"


def test_a_line_of_twelve_megabytes() -> None:
    """A line of megabytes is read in part, and what follows it in full."""
    document = document_of("A" * 12_000_000 + "\n" + SGLANG + "max_total_num_tokens=" * 60_000)
    assert document["pool_tokens"] == 1000
    assert all(len(origin["quote"]) <= 202 for origin in document["sources"].values())


@pytest.mark.parametrize(
    "poison", ["\x00", "\x1b]0;title\x07", "\x9b31m", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "\u202e"]
)
def test_quotes_hold_no_control_characters(poison: str) -> None:
    """Whatever stands beside a value, its quote has no control character."""
    document = document_of(f"{poison} max_total_num_tokens=7, {poison} context_len=2048, {poison}\n")
    assert document["pool_tokens"] == 7
    for origin in document["sources"].values():
        assert origin["quote"].isprintable()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=60))
def test_any_bytes_are_read(noise: bytes, more: bytes) -> None:
    """No bytes break a reader, and bytes around a line do not hide it."""
    text = noise + b"\n" + SGLANG.encode() + more
    facts = read_text("x", text)
    assert facts


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="{}[]()=,:'\"\\max_total_num_tokens server_args= 0159\n", max_size=300))
def test_broken_argument_lists_are_read(noise: str) -> None:
    """Unbalanced brackets and quotes after an anchor break nothing."""
    for head in ("server_args=ServerArgs(", "non-default args: {", "Args {", "vllm serve ", "vllm:cache_config_info{"):
        assert read_text("x", head + noise)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(rid='a', text='max_total_num_tokens=99999999, x')",
        "INFO 01-01 00:00:00 [logger.py:43] Received request c-1: prompt: 'GPU KV cache size: 99,999,999 tokens',",
        json.dumps({"messages": [{"role": "user", "content": "max_total_num_tokens=99999999, context_len=1024, x"}]}),
    ],
)
def test_a_clients_words_are_no_evidence(line: str) -> None:
    """What a client wrote into a logged request changes no fact and is not quoted."""
    document = document_of(SGLANG + line + "\n")
    assert document["pool_tokens"] == 1000
    assert "99999999" not in json.dumps(document)
    assert "99,999,999" not in json.dumps(document)


def test_a_finished_request_is_quoted_without_its_text() -> None:
    """The placeholder's fingerprint in a request log is an event; the prompt beside it is not shown."""
    line = (
        "[2026-01-01 00:00:00] Finish: obj=GenerateReqInput(rid='a', text='the patient is called Ada'), out={"
        "'text': 'Ada', 'meta_info': {"
        "'finish_reason': {'type': 'length', 'length': 0}, 'prompt_tokens': 1, 'completion_tokens': 1}}"
    )
    document = document_of(line)
    assert document["event"] == "prompt_tokens_1_beside_long"
    assert "Ada" not in json.dumps(document)


SECRETS = [
    "--api-key {}", "--api-key={}", "api_key='{}'", '"api_key": "{}"', "HF_TOKEN={}", "export OPENAI_API_KEY='{}'",
    "Authorization: Bearer {}", "-H 'authorization: basic {}'", "https://user:{}@host/x", "--hf-token {}",
    "password: {}", "AWS_SECRET_ACCESS_KEY={}", '{{"name": "NGC_API_KEY", "value2": 1, "secret": "{}"}}',
    "?token={}", '\\"api_key\\": \\"{}\\"',
]  # fmt: skip


@pytest.mark.parametrize("form", SECRETS)
def test_credentials_do_not_reach_a_quote(form: str) -> None:
    """A credential in any usual form is masked, alone and beside a value."""
    secret = "Zq9-xW7_vT5pLm3"
    assert secret not in redact(form.format(secret))
    text = f"python -m sglang.launch_server --context-length 8192 {form.format(secret)} --page-size 64\n"
    assert secret not in json.dumps(document_of(text))


def test_redaction_is_quick_on_long_words() -> None:
    """Masking a megabyte of one word takes no longer than reading it."""
    assert len(redact("a_key" * 200_000)) > 0


def test_a_frequent_event_is_counted_in_full() -> None:
    """A signature that repeats for ever is counted, with its first and last line."""
    line = "Deferred KV release for room {} timed out after 30.0s without a full drain ack; releasing anyway.\n"
    document = document_of("".join(line.format(room) for room in range(3000)))
    (event,) = document["events"]
    assert (event["count"], event["first"]["line"], event["last"]["line"]) == (3000, 1, 3000)
    assert document["release_timeout_s"] == 30.0
