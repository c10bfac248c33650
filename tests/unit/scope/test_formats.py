"""Every format of log, damaged or not: one long prompt is planted in each file, and found with its line."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from backports import zstd

from kvfence.core.errors import EvidenceError
from kvfence.scope.relation import Reading
from tests.unit.scope.logbook import POOL, Outcome, entry, run, write

LONG = POOL + 7
AT = "2026-09-01T10:00:00Z"
SECRET = "the patient's name is"


def _lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def sglang(path: Path) -> None:
    """SGLang's --log-requests: what a client wrote looks like the engine's part, and stands before it."""
    forged = "out={'text': '', 'meta_info': {'id': 'forged', 'prompt_tokens': 3}}"
    finish = (
        "[2026-09-01 10:00:20] Finish: obj=GenerateReqInput(rid='sgl-1', text=\"{text}\"), out={{'text': '{text}', "
        "'meta_info': {{'id': 'sgl-1', 'finish_reason': {{'type': 'stop', 'matched': 2}}, 'prompt_tokens': {tokens}, "
        "'completion_tokens': 5, 'cached_tokens': 0, 'e2e_latency': 20.0}}}}\n"
    )
    stub = finish.replace("sgl-1", "sgl-stub")
    lines = [
        "[2026-09-01 09:00:00] server started\n",
        f"[2026-09-01 10:00:00] Receive: obj=GenerateReqInput(rid='sgl-1', text='{SECRET}')\n",
        finish.format(text=SECRET + forged.replace("'", ""), tokens=LONG),
        stub.format(text="x" * 9_000, tokens=1),
        "[2026-09-01 10:00:30] Finish: obj=GenerateReqInput(rid='cut'), out={'text': 'a'\n",
    ]
    path.write_text("".join(lines), "utf-8")


def vllm(path: Path) -> None:
    """vLLM's request lines: no year, the length only as a list of ids."""
    ids = ", ".join("1" for _ in range(LONG))
    path.write_text(
        "INFO 09-01 10:00:00 [logger.py:42] Received request vllm-1: "
        f"prompt: '{SECRET}, prompt_token_ids: [1], ', "
        f"params: SamplingParams(n=1), prompt_token_ids: [{ids}], prompt_embeds shape: None.\n"
        "INFO 09-01 10:00:01 [engine.py:1] Added request vllm-1.\n"
        "INFO 09-01 10:00:09 [logger.py:80] Generated response vllm-1 (streaming complete): output: 'x', "
        "output_token_ids: [5, 6], finish_reason: stop\n"
        "INFO 09-01 10:00:10 [logger.py:42] Received request vllm-2: params: SamplingParams(n=1).\n",
        "utf-8",
    )


def nginx(path: Path) -> None:
    """An access log with a token header; the user agent pretends to be one."""
    path.write_text(
        '10.0.0.1 - acme [01/Sep/2026:12:00:05 +0200] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" '
        f'"curl prompt_tokens=1" request_id=ngx-1 request_time=5.000 prompt_tokens={LONG} upstream_addr="10.0.0.7:80"\n'
        '10.0.0.1 - - [01/Sep/2026:12:00:06 +0200] "GET /health HTTP/1.1" 200 2 "-" "probe" request_id=ngx-2\n'
        "not an access line\n",
        "utf-8",
    )


def envoy(path: Path) -> None:
    """Envoy's own text format with a token header behind it."""
    path.write_text(
        '[2026-09-01T10:00:00.000Z] "POST /v1/completions HTTP/2" 200 - 2725000 1024 8000 7990 "10.0.0.1" "curl" '
        f'"env-1" "api" "10.0.0.7:80" x-prompt-tokens={LONG} x-tenant-id="acme"\n',
        "utf-8",
    )


def otlp(path: Path) -> None:
    """A batch of OTLP spans: one of generative AI, one of something else."""

    def attributes(**values: Any) -> list[dict[str, Any]]:
        return [
            {
                "key": key.replace("__", "."),
                "value": {"intValue" if isinstance(value, int) else "stringValue": str(value)},
            }
            for key, value in values.items()
        ]

    span = {
        "traceId": "t",
        "spanId": "span-1",
        "startTimeUnixNano": "1788256800000000000",
        "endTimeUnixNano": "1788256805000000000",
        "attributes": attributes(
            gen_ai__usage__input_tokens=LONG, gen_ai__request__model="glm", gen_ai__response__id="otel-1",
            gen_ai__prompt=SECRET,
        ),
    }  # fmt: skip
    other = {"spanId": "other", "attributes": attributes(http__method="GET")}
    resource = {"attributes": attributes(service__instance__id="pair-1")}
    batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span, other]}]}]}
    path.write_bytes(_lines(batch))


def flat_spans(path: Path) -> None:
    """Spans flattened to one object a line."""
    attributes = {"gen_ai.usage.input_tokens": LONG, "gen_ai.response.id": "flat-1", "gen_ai.request.model": "glm"}
    path.write_bytes(_lines({"start_time": AT, "status": {"code": "STATUS_CODE_OK"}, "attributes": attributes}))


def litellm(path: Path) -> None:
    """LiteLLM's spend logs as CSV: camel case, a status in words, times of the first token."""
    path.write_text(
        "request_id,call_type,api_key,spend,total_tokens,prompt_tokens,completion_tokens,startTime,endTime,"
        "completionStartTime,model,team_id,status\n"
        f"lite-1,acompletion,sk-secret-key,0.1,9,{LONG},5,2026-09-01 10:00:00,2026-09-01 10:00:09,2026-09-01 10:00:01,"
        "glm,,success\n"
        f"lite-2,acompletion,sk-secret-key,0.1,9,{LONG},5,2026-09-01 10:00:00,2026-09-01 10:00:09,,glm,,failure\n"
        "lite-3,too,few\n",
        "utf-8",
    )


def gateway(path: Path) -> None:
    """An OpenAI-style gateway; the client's own metadata names a length too."""
    row = entry("gate-1", LONG, AT, metadata={"prompt_tokens": 1}, messages=[{"content": SECRET}])
    path.write_bytes(_lines(row))


def mixed(path: Path) -> None:
    """Two shapes of line in one file, epochs as numbers, and lines that are no objects."""
    other = {"request_id": "mixed-2", "ts": 1788256800.5, "input_tokens": str(LONG), "status_code": "200"}
    path.write_bytes(
        _lines(entry("mixed-1", LONG, AT), other)
        + b'[1, 2]\n\n{"id": "mixed-3", "usage": {"prompt_tok\n"text"\n'
    )  # fmt: skip


def document(path: Path) -> None:
    """One JSON document that holds a list."""
    path.write_text(json.dumps([entry("doc-1", LONG, AT), entry("doc-2", 5, AT)], indent=1), "utf-8")


def cut_gzip(path: Path) -> None:
    """A gzip file that breaks off: what stands before the break is read."""
    whole = gzip.compress(
        _lines(entry("cut-1", LONG, AT), *(entry(f"c{n}", n * 7919 % 9973 + 2, AT) for n in range(20_000)))
    )
    path.write_bytes(whole[: len(whole) // 2])


def whole_zstd(path: Path) -> None:
    """A zstd file under a name that does not say so."""
    path.write_bytes(zstd.compress(_lines(entry("zstd-1", LONG, AT))))


def bytes_of_any_kind(path: Path) -> None:
    """Bytes that are no UTF-8, and controls, in lines that can be read all the same."""
    row = json.dumps(entry("bytes-1", LONG, AT, account="caf\u00e9")).replace("\\u00e9", "\u00e9").encode("latin-1")
    path.write_bytes(row + b"\n" + _lines(entry("bytes-2", 5, AT)).replace(b": ", b":\x01"))


def hostile(path: Path) -> None:
    """Ids and accounts that try SQL, HTML and a terminal's escapes."""
    path.write_bytes(
        _lines(
            entry("'; DROP TABLE candidates; --", LONG, AT, account="<script>alert(1)</script>"),
            entry("\u001b[2J\u202e" + "x" * 5_000, LONG, AT, account="a\"b'c"),
            entry("huge", 10**40, AT),
            entry("nan", "NaN", AT, ttft_ms=-5, duration_ms="soon"),
            {"id": "deep", "usage": {'k"ey': {"a": {"b": {"c": {"d": {"prompt_tokens": 1}}}}}}},
        )
    )


def parquet(path: Path) -> None:
    """Parquet with nested and wide columns."""
    duckdb.sql(
        f"COPY (SELECT 'parq-1' AS id, TIMESTAMP '2026-09-01 10:00:00' AS created_at, "
        f"{{'prompt_tokens': {LONG}::UBIGINT}} AS usage, "
        "200::SMALLINT AS status, 'NaN'::DOUBLE AS ttft_ms UNION ALL SELECT 'parq-2', NULL, NULL, NULL, 5) "
        f"TO '{path}' (FORMAT parquet)"
    )


def cut_parquet(path: Path) -> None:
    """Parquet without its end."""
    parquet(path)
    path.write_bytes(path.read_bytes()[:200])


MAKERS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "sglang.log": (sglang, {"sgl-1"}),
    "vllm.log": (vllm, {"vllm-1"}),
    "access.log": (nginx, {"ngx-1"}),
    "envoy.log": (envoy, {"env-1"}),
    "spans.json": (otlp, {"otel-1"}),
    "flat.jsonl": (flat_spans, {"flat-1"}),
    "spend.csv": (litellm, {"lite-1"}),
    "gateway.jsonl": (gateway, {"gate-1"}),
    "mixed.jsonl": (mixed, {"mixed-1", "mixed-2"}),
    "document.json": (document, {"doc-1"}),
    "cut.jsonl.gz": (cut_gzip, {"cut-1"}),
    "zstd.log": (whole_zstd, {"zstd-1"}),
    "bytes.jsonl": (bytes_of_any_kind, {"bytes-1"}),
    "hostile.jsonl": (hostile, {"'; DROP TABLE candidates; --", "\u001b[2J\u202e" + "x" * 251}),
    "requests.parquet": (parquet, {"parq-1"}),
    "cut.parquet": (cut_parquet, set()),
}
TROUBLES = {
    "sglang.log": {"request_line_unreadable": 1, "no_zone": 2},
    "access.log": {"not_an_access_line": 1},
    "spans.json": {"span_of_something_else": 1},
    "spend.csv": {"not_a_row": 1, "no_zone": 2},
    "mixed.jsonl": {"not_json": 3},
    "bytes.jsonl": {"not_utf8": 1, "control_bytes": 1},
    "hostile.jsonl": {"unreadable_prompt_tokens": 2, "unreadable_duration_ms": 1, "negative_ttft_ms": 1},
    "requests.parquet": {"unreadable_ttft_ms": 1, "no_zone": 2},
    "cut.parquet": {"cannot_be_read": 1},
    "vllm.log": {"no_zone": 2},
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All files in one run, by a directory and a glob."""
    folder = tmp_path_factory.mktemp("formats")
    logs = folder / "logs"
    logs.mkdir()
    for name, (make, _) in MAKERS.items():
        make(logs / name)
    return run(folder, logs, f"{logs}/*.jsonl", horizon_s=1.0)


def _reading(outcome: Outcome, name: str) -> Reading:
    return next(each for each in outcome.relation.readings if each.source.endswith("/" + name))


@pytest.mark.parametrize("name", MAKERS)
def test_the_long_prompts_of_each_format_are_found(outcome: Outcome, name: str) -> None:
    """What each file holds over the pool is AFFECTED, and nothing else of it is."""
    rows = [row for row in outcome.rows if row["source_file"].endswith("/" + name) and row["class"] == "AFFECTED"]
    assert {row["request_id"] for row in rows} == MAKERS[name][1]
    assert all(row["prompt_tokens"] == LONG and str(row["started"]).startswith("2026-09-01 10:00:00") for row in rows)


@pytest.mark.parametrize("name", MAKERS)
def test_what_cannot_be_read_is_counted(outcome: Outcome, name: str) -> None:
    """Damage and values that are none are counted by kind, file by file; nothing else is."""
    found = {each.kind: each.count for each in _reading(outcome, name).troubles}
    if name == "cut.jsonl.gz":
        assert found.pop("broken_off") == 1
        assert found.pop("not_json", 1) == 1, "the line in which the file breaks off"
    assert found == TROUBLES.get(name, {})


def test_times_that_no_calendar_holds_stop_nothing(tmp_path: Path) -> None:
    """Years before the first and after the last are no times: counted, and the request is judged without one."""
    log = tmp_path / "calendar.jsonl"
    times = ("-0044-03-15T00:00:00Z", "0000-01-01T00:00:00Z", "44-03-15 (BC) 00:00:00", "290000-01-01T00:00:00Z")
    log.write_bytes(_lines(entry("now", 5, AT), *(entry(f"r{n}", LONG, time) for n, time in enumerate(times))))
    outcome = run(tmp_path, log)
    assert {row["request_id"] for row in outcome.rows if row["class"] in ("AFFECTED", "UNKNOWN")} >= {
        f"r{n}" for n in range(len(times))
    }
    assert all(row["started"] is None for row in outcome.rows if str(row["request_id"]).startswith("r"))


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("2026-09-01T12:00:00", "2026-09-01T12:00:00"),
        ("2026-09-01 12:00:00,5Z", "2026-09-01T12:00:00.500000"),
        ("2026-09-01T12:00:00+02:00", "2026-09-01T10:00:00"),
        ("2026-9-1 2:00:00-05", "2026-09-01T07:00:00"),
        ("2026-09-01 12:00:00 Europe/Berlin", "2026-09-01T10:00:00"),
        ("294247-01-10 04:00:54.775806", None),
        ("294247-01-10 04:00:54.775806-05:00", None),
        ("294247-01-10 04:00:54.775806 CET", None),
    ],
)
def test_a_time_is_read_with_its_zone(tmp_path: Path, text: str, there: str | None) -> None:
    """A zone by its offset or its name counts; a time at the calendar's end is none, and hides no other line."""
    rows = [entry("plain", LONG), entry("this", LONG, text), entry("after", LONG)]
    found = run(tmp_path, write(tmp_path / "log.jsonl", rows))
    at = found.by_id["this"]["started"]
    assert (at and at.isoformat()) == there
    assert found.counts == {"AFFECTED": 3}


def test_sources_and_lines_are_known(outcome: Outcome) -> None:
    """A finding names its file and its line, broken and blank lines counted."""
    lines = {
        name: outcome.by_id[name]["source_line"] for name in ("sgl-1", "mixed-2", "ngx-1", "lite-1", "parq-1", "gate-1")
    }
    assert lines == {"sgl-1": 3, "mixed-2": 2, "ngx-1": 1, "lite-1": 2, "parq-1": 1, "gate-1": 1}


def test_the_placeholder_of_prefills_own_log_is_likely(outcome: Outcome) -> None:
    """One prompt token beside a request of nine thousand bytes is the placeholder's mark."""
    assert outcome.verdict("sgl-stub") == ("LIKELY", "one_token_long_body")


def test_no_column_holds_what_was_asked(outcome: Outcome) -> None:
    """No prompt text, and no key, is in any row or reading."""
    shown = f"{outcome.rows} {outcome.relation.readings}"
    assert SECRET not in shown
    assert "sk-secret-key" not in shown
    assert outcome.by_id["lite-1"]["account"].startswith("key-")


def test_columns_are_shown_with_how_they_were_chosen(outcome: Outcome) -> None:
    """A reading names the field of each column; a client's own field is not taken."""
    choices = {each.column: (each.field, each.how) for each in _reading(outcome, "gateway.jsonl").choices}
    assert choices["prompt_tokens"] == ("usage.prompt_tokens", "name")
    seconds = {each.column: each.how for each in _reading(outcome, "access.log").choices}
    assert seconds["duration_ms"] == "name, seconds"


def test_parquet_that_is_damaged_inside_is_left_out_and_said(tmp_path: Path) -> None:
    """A file whose end is sound and whose pages are not does not hide what the other one holds."""
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    parquet(good)
    parquet(bad)
    data = bytearray(bad.read_bytes())
    data[4:160] = bytes(156)
    bad.write_bytes(data)
    found = run(tmp_path, good, bad, horizon_s=1.0)
    assert found.counts["AFFECTED"] == 1
    assert found.troubles()["cannot_be_read"] == 1


def test_a_field_can_be_named(tmp_path: Path) -> None:
    """--map takes a field that no name tells, nested or with a dot in its name."""
    log = write(tmp_path / "a.jsonl", [{"n": {"p.t": LONG}, "when": AT, "rc": 200}])
    found = run(tmp_path, log, maps=("prompt_tokens=n.p.t", "started=when", "status=rc"), horizon_s=1.0)
    assert found.counts == {"AFFECTED": 1}


def _unreadable() -> Iterator[tuple[str, bytes]]:
    yield "empty.jsonl", b""
    yield "noise.bin", bytes(range(256)) * 40


@pytest.mark.parametrize(("name", "data"), list(_unreadable()), ids=[name for name, _ in _unreadable()])
def test_logs_without_a_request_are_refused_in_words(tmp_path: Path, name: str, data: bytes) -> None:
    """Nothing to judge is never nothing found: an error names the file, or the row is UNKNOWN."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(EvidenceError, match=name):
        run(tmp_path, tmp_path / name)


def test_an_empty_file_beside_others_is_named_and_no_more(tmp_path: Path) -> None:
    """A rotated log that nothing was written to lacks nothing."""
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "empty.jsonl.gz").write_bytes(gzip.compress(b"\n"))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"\n")[:2])
    names = [tmp_path / name for name in ("empty.jsonl", "empty.jsonl.gz", "cut.gz")]
    found = run(tmp_path, *names, write(tmp_path / "a", [entry("a", 5)]))
    assert found.counts == {"CLEAR": 1}
    assert found.troubles() == {"empty": 2, "no_column": 1}


def test_what_two_fields_say_of_a_length_clears_nobody_by_the_shorter_one(tmp_path: Path) -> None:
    """Two fields, or two columns of one name as joined tables have them: the longer length holds."""
    rows = [entry("nested", 5, AT, prompt_tokens=LONG), entry("nought", LONG, AT, prompt_tokens=0)]
    (tmp_path / "b.csv").write_text(
        f"id,prompt_tokens,prompt_tokens,status,created\ntwice,5,{LONG},200,{AT}\n", "utf-8"
    )
    bom = tmp_path / "c.jsonl"
    bom.write_bytes(b"\xef\xbb\xbf" + _lines(entry("bom", LONG, AT)))
    found = run(tmp_path, write(tmp_path / "a.jsonl", rows), tmp_path / "b.csv", bom, horizon_s=0.001)
    affected = {row["request_id"] for row in found.rows if row["class"] == "AFFECTED"}
    assert affected == {"nested", "nought", "twice", "bom"}


def test_a_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    """A link beside what it leads to adds no request, and it is said."""
    log = write(tmp_path / "a.jsonl", [{"prompt_tokens": LONG, "created": AT, "status": 200}])
    (tmp_path / "current.jsonl").symlink_to(log)
    found = run(tmp_path, log, tmp_path / "current.jsonl", horizon_s=0.001)
    assert found.counts == {"AFFECTED": 1}
    assert found.troubles() == {"same_file": 1}


def test_a_field_that_is_not_there_is_said(tmp_path: Path) -> None:
    """--map of a field that a table has not, or no line: counted, and nothing is clear by it."""
    row = f"'a' AS id, {LONG} AS prompt_tokens, TIMESTAMPTZ '{AT}' AS ts, 200 AS status"
    duckdb.sql(f"COPY (SELECT {row}) TO '{tmp_path}/a.parquet' (FORMAT parquet)")
    log = write(tmp_path / "b.jsonl", [entry("b", LONG, AT)])
    found = run(tmp_path, f"{tmp_path}/a.parquet", log, maps=("prompt_tokens=nope.nope",))
    assert found.counts == {"UNKNOWN": 2}
    assert found.troubles() == {"map_not_there": 2}


def test_rows_in_which_nothing_is_known_are_unknown(tmp_path: Path) -> None:
    """A log of which no field is a column is not clear."""
    (tmp_path / "fields.jsonl").write_bytes(b'{"a": 1}\n')
    found = run(tmp_path, tmp_path / "fields.jsonl")
    assert found.counts == {"UNKNOWN": 1}
    assert "no_column" in found.troubles()
