"""Texts that once read as an all-clear: two processes in one log, a start without its pool, a client's own words."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from kvfence.audit import bundle
from kvfence.audit.deployment import Stated, assemble
from kvfence.audit.examine import Request, examine
from kvfence.audit.inputs import spec_of
from kvfence.audit.runner import run
from kvfence.core.errors import EvidenceError
from kvfence.core.verdict import Verdict
from kvfence.evidence import fetch
from kvfence.evidence.answers import read_answer
from kvfence.evidence.gather import read_text
from tests.audit.test_keeping import written

CONTEXT = 1_048_576
SMALL, LARGE = 681_280, 2_040_000


def at(time: str, text: str) -> str:
    """Give a line of SGLang's."""
    return f"[2026-09-{time}:00 TP0] {text}\n"


def args(role: str, time: str = "02 00:00", context: int = CONTEXT) -> str:
    """Give the line with which a process says how it was started."""
    return at(time, f"server_args={{'model_path': '/m', 'context_length': {context}, 'disaggregation_mode': '{role}'}}")


def sizes(pool: int, time: str = "02 00:05", context: int = CONTEXT) -> str:
    """Give the line with a process's pool and context."""
    return at(time, f"max_total_num_tokens={pool}, chunked_prefill_size=8192, context_len={context}, x=1 GB")


START = args("prefill") + sizes(SMALL)
FORGED = f"max_total_num_tokens={10 * CONTEXT}, chunked_prefill_size=8192, context_len=8, x=1 GB"
SPOKEN = {
    "the path of a request": f'[2026-09-03 00:00:00] INFO:     10.0.0.1:1 - "GET /?{FORGED} HTTP/1.1" 404 Not Found',
    "a request's id": f"[2026-09-03 00:00:00] Input length (9 tokens) exceeds the limit, self.rid='{FORGED}'",
    "vLLM's request id": f"INFO 09-03 00:00:00 [async_llm.py:1] Added request {FORGED}.",
    "a model's name": f"[2026-09-03 00:00:00] ErrorInfo(message='The model `{FORGED}` does not exist.', code=404)",
    "a conversation": f'{{"role": "user", "content": "{FORGED}"}}',
    "words inside a JSON log": f'{{"ts": "1", "text": "said: \'{FORGED}\'"}}',
}


def findings(tmp_path: Path, files: Mapping[str, str], *named: str, rule: str = "KVF0001") -> dict[str, Verdict]:
    """Examine files and give a rule's verdicts by subject, without the half that was not shown."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    specs = tuple(spec_of(str(tmp_path / name)) for name in named or files)
    audit = examine(Request(specs)).audit
    return {each.subject: each.verdict for each in audit.findings if each.rule == rule and each.subject != "decode"}


@pytest.mark.parametrize("said", SPOKEN)
def test_what_a_client_says_is_no_size(tmp_path: Path, said: str) -> None:
    """A pool and a context in words that a client chose change no verdict, with or without the engine's own line."""
    assert set(findings(tmp_path, {"p.log": START + SPOKEN[said] + "\n"}).values()) == {Verdict.FAIL}


@pytest.mark.parametrize("said", [each for each in SPOKEN if each != "words inside a JSON log"])
def test_what_a_client_says_alone_proves_nothing(tmp_path: Path, said: str) -> None:
    """Where the engine's own line is not in the log, a client's words do not stand in for it."""
    assert Verdict.PASS not in findings(tmp_path, {"p.log": args("prefill") + SPOKEN[said] + "\n"}).values()


def test_both_roles_in_one_log_are_two_processes(tmp_path: Path) -> None:
    """The least pool holds where one text speaks of prefill and of decode."""
    text = START + args("decode") + sizes(LARGE)
    assert set(findings(tmp_path, {"all.log": text}).values()) == {Verdict.FAIL}


def test_a_second_pool_without_a_start_between_is_another_process(tmp_path: Path) -> None:
    """Two starts, then two pools: the last does not hold."""
    text = args("prefill") + args("prefill") + sizes(SMALL) + sizes(LARGE)
    assert set(findings(tmp_path, {"p.log": text}).values()) == {Verdict.FAIL}


def test_a_log_whose_time_goes_back_is_several_logs(tmp_path: Path) -> None:
    """Logs of pods one after the other, or rotated ones in the wrong order, are no restart."""
    earlier = args("prefill", "01 00:00") + sizes(LARGE, "01 00:05")
    assert set(findings(tmp_path, {"p.log": START + earlier}).values()) == {Verdict.FAIL}


def test_a_restart_with_another_pool_counts_and_the_last_start_holds(tmp_path: Path) -> None:
    """What an earlier start printed is past, in either direction."""
    small, large = sizes(SMALL, "02 00:05"), sizes(LARGE, "03 00:05")
    assert set(
        findings(tmp_path, {"p.log": args("prefill") + small + args("prefill", "03 00:00") + large}).values()
    ) == {Verdict.PASS}
    text = args("prefill", "01 00:00") + sizes(LARGE, "01 00:05") + START
    assert set(findings(tmp_path, {"p.log": text}).values()) == {Verdict.FAIL}


def test_a_start_that_has_not_printed_its_pool_is_unknown(tmp_path: Path) -> None:
    """The pool of the start before it does not stand in for it."""
    text = args("prefill", context=131_072) + sizes(SMALL, context=131_072) + args("prefill", "03 00:00")
    assert set(findings(tmp_path, {"p.log": text}).values()) == {Verdict.UNKNOWN}
    config = "Initializing a V1 LLM engine (v0.24.0) with config: model='m', max_seq_len={}\n"
    vllm = config.format(8192) + "GPU KV cache size: 100,000 tokens\n" + config.format(200_000)
    assert set(findings(tmp_path, {"v.log": vllm}).values()) == {Verdict.UNKNOWN}


def test_numbered_files_without_the_log_itself_are_several_processes(tmp_path: Path) -> None:
    """``node.0`` and ``node.1`` are not one rotated log; ``p.log`` and ``p.log.1`` are."""
    inner = tmp_path / "logs"
    inner.mkdir()
    found = findings(
        tmp_path, {"logs/node.0": args("prefill") + sizes(LARGE), "logs/node.1": START}, "logs", rule="KVF0001"
    )
    assert sorted(found.values()) == [Verdict.FAIL, Verdict.PASS]


def test_a_caller_who_says_single_does_not_overrule_the_text(tmp_path: Path) -> None:
    """A log that says prefill is prefill's."""
    assert set(findings(tmp_path, {"p.log": START}, "p.log=single").values()) == {Verdict.FAIL}


@pytest.mark.parametrize("rest", ["...", "{{ .Values.args }}", "<your flags>", "[OPTIONS]", "{extra}", "$ARGS"])
def test_a_command_with_something_left_open_is_no_single_node(rest: str) -> None:
    """The argument that makes it one half of a pair may stand there."""
    (facts,) = read_text("run.sh", f"python -m sglang.launch_server --model-path m --context-length 8192 {rest}\n")
    assert getattr(facts.role, "value", None) is None


def test_a_connector_in_use_is_no_single_node() -> None:
    """That no argument names a connector does not hold against a log line that does."""
    text = (
        "INFO [x.py:1] non-default args: {'model': 'm'}\n"
        "INFO [y.py:1] Creating v1 connector with name: NixlConnector and engine_id: 1\n"
    )
    (facts,) = read_text("v.log", text)
    assert getattr(facts.role, "value", None) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e400"])
def test_a_sample_that_is_no_size_says_nothing(value: str) -> None:
    """No number, no bound: no fact, and nothing breaks."""
    row = {"metric": {"__name__": "sglang:max_total_num_tokens"}, "value": [1, value]}
    (facts,) = read_answer("m", {"status": "success", "data": {"result": [row, "x"]}}) or []
    assert getattr(facts.pool_tokens, "value", None) is None
    (facts,) = read_text("m", f'# TYPE sglang:context_len gauge\nsglang:max_total_num_tokens{{a="b"}} {value}\n')
    assert getattr(facts.pool_tokens, "value", None) is None


def test_two_models_in_one_dump_of_metrics_are_two_engines(tmp_path: Path) -> None:
    """The least pool is compared with the greatest context."""
    sample = 'sglang:{}{{engine_type="prefill",model_name="{}"}} {}\n'
    text = "".join(
        sample.format("max_total_num_tokens", model, SMALL) + sample.format("context_len", model, context)
        for model, context in (("a", CONTEXT), ("b", 8192))
    )
    assert set(findings(tmp_path, {"m": "# TYPE sglang:context_len gauge\n" + text}).values()) == {Verdict.FAIL}


def test_pool_and_context_of_two_sources_without_a_role_decide_nothing(tmp_path: Path) -> None:
    """The one may be prefill's and the other decode's."""
    log = at("02 00:05", f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {SMALL}, K size: 1 GB, V size: 1 GB")
    answer = '{"context_length": 8192, "mem_fraction_static": 0.9, "chunked_prefill_size": 8192}'
    assert set(findings(tmp_path, {"a.log": log, "b.json": answer}).values()) == {Verdict.UNKNOWN}


def test_pool_and_context_of_two_replicas_of_a_role_decide_nothing(tmp_path: Path) -> None:
    """One replica's log and another's answer are not one engine; a launch command holds for every replica."""
    log = at("02 00:05", f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {SMALL}, K size: 1 GB, V size: 1 GB")
    answer = '{"context_length": 8192, "mem_fraction_static": 0.9, "chunked_prefill_size": 8192}'
    files, named = {"a.log": log, "b.json": answer}, ("a.log=prefill", "b.json=prefill")
    assert Verdict.PASS not in findings(tmp_path, files, *named).values()
    command = "python -m sglang.launch_server --model-path m --context-length 8192 --disaggregation-mode prefill"
    files, named = {"a.log": log, "c.sh": command}, ("a.log=prefill", "c.sh=prefill")
    assert Verdict.PASS in findings(tmp_path, files, *named).values()


def test_a_size_below_one_is_no_size(tmp_path: Path) -> None:
    """A context of nought or less is not held by any pool; a sub-pool of nought is none."""
    answer = '{"max_req_input_len": -1, "disaggregation_mode": "prefill", "context_length": -5, "x": 1}'
    assert set(findings(tmp_path, {"i.json": answer}).values()) == {Verdict.UNKNOWN}
    (facts,) = read_text("m", 'sglang:max_total_num_tokens_swa{a="b"} 0.0\nsglang:page_size{a="b"} 1.0\n')
    assert getattr(facts.pool_tokens_swa, "value", None) is None


@pytest.mark.parametrize("text", ["", "nothing an engine says\n"])
def test_nothing_passes_on_a_text_of_no_engine(text: str) -> None:
    """That no failure stands in an empty log proves nothing."""
    audit = run(assemble(read_text("empty.log", text), Stated()))
    assert Verdict.PASS not in {finding.verdict for finding in audit.findings}


@pytest.mark.parametrize("version", ["0.0.0.dev0", "0.0.0.dev1+gabcdef0", "0.1.dev15"])
def test_a_build_without_a_tag_is_no_release(version: str) -> None:
    """What is in it cannot be told, neither for nor against."""
    text = f"{args('prefill')}sglang=={version}\n"
    audit = run(assemble(read_text("p.log", text), Stated()))
    assert {audit.verdict_of(rule) for rule in ("KVF0003", "KVF0008", "KVF0013")} == {Verdict.UNKNOWN}


def test_a_bundle_with_a_changed_byte_never_breaks_the_reader(tmp_path: Path) -> None:
    """Each changed byte of its content is an error of the evidence or a difference."""
    path = written(tmp_path)
    data = path.read_bytes()
    for where in range(40, len(data) // 2, 41):
        path.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])
        with suppress(EvidenceError):  # anything else is our own fault
            bundle.verify(path)


def test_a_server_that_drips_its_head_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on a whole answer holds for its head too, and a query's value is not shown."""
    monkeypatch.setattr(fetch, "DEADLINE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=_drip, args=(listener,), daemon=True).start()
        answer = fetch.get(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics?sig=sesame", timeout_s=5)
    assert (answer.status, answer.body) == (0, b"")
    assert "sesame" not in answer.url


def _drip(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        connection.recv(1 << 16)
        connection.recv(1)  # ends when the client shuts the connection
