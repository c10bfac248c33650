"""How long `kvfence scope report` takes on large logs, against DuckDB reading the same columns and doing nothing else.

    make bench BENCH=scope ARGS="--rows 100000000 --format parquet"
    make bench BENCH=scope ARGS="--rows 10000000 --format jsonl"

DuckDB makes the log itself (seconds a ten million rows), sorted by time as logs are, with 155 planted answers. Scan and
report run in processes of their own, in turns; times are CPU seconds of the process and seconds on the wall.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

COLUMNS = (
    "request_id", "started", "account", "model", "replica", "worker", "prompt_tokens", "completion_tokens", "status",
    "ttft_ms", "duration_ms", "body_bytes",
)  # fmt: skip
AFFECTED = 155
BLOCK_ROWS = 10_000_000
POOL, DECODE_POOL, CONTEXT = 681_280, 2_100_000, 1_048_576


def make(folder: Path, rows: int, form: str) -> list[Path]:
    """Write a log of so many rows over 28 days: one file, or files of ten million rows that follow each other."""
    blocks = max(1, rows // BLOCK_ROWS)
    days = 28 / blocks
    paths = [folder / f"{number:03}.{form}" for number in range(blocks)]
    connection = duckdb.connect(config={"threads": 2, "memory_limit": "3GB"})
    for number, path in enumerate(paths):
        if path.exists():
            continue
        if number == 0:
            _make_first(connection, path, rows // blocks, days)
        else:
            # A copy with other times and ids, in which nobody is affected.
            connection.execute(f"""
                COPY (SELECT * REPLACE (
                    request_id || '{number:x}' AS request_id,
                    started + to_microseconds({int(number * days * 86_400_000_000)}) AS started,
                    CASE WHEN prompt_tokens > {POOL} THEN prompt_tokens // 4 ELSE prompt_tokens END AS prompt_tokens)
                FROM '{paths[0]}') TO '{path}' (FORMAT parquet, COMPRESSION snappy)
            """)
    return paths


def _make_first(connection: duckdb.DuckDBPyConnection, path: Path, rows: int, days: float) -> None:
    every = max(1, rows // AFFECTED)
    step_us = int(days * 86_400_000_000) // rows
    form = "parquet, COMPRESSION snappy" if path.suffix == ".parquet" else "json"
    planted = f"i % {every} = {every // 2} AND i // {every} < {AFFECTED}"
    connection.execute(f"""
        COPY (SELECT
            printf('chatcmpl-%016x%08x', hash(i), i % 4294967296) AS request_id,
            TIMESTAMP '2026-08-20' + to_microseconds(i * {step_us}) AS started,
            'acct-' || (hash(i + 1) % 20000) AS account,
            'glm-5.3' AS model,
            'pair-' || (hash(i + 2) % 8) AS replica,
            'decode-' || (hash(i + 3) % 16) AS worker,
            CASE WHEN {planted} THEN 681281 + (hash(i + 4) % 300000)::INT
                 WHEN hash(i + 5) % 500 = 0 THEN 20000 + (hash(i + 4) % 600000)::INT
                 ELSE 20 + (hash(i + 4) % 12000)::INT END AS prompt_tokens,
            (hash(i + 6) % 1500)::INT AS completion_tokens,
            CASE WHEN hash(i + 7) % 97 = 0 AND NOT ({planted}) THEN 429 ELSE 200 END AS status,
            round((hash(i + 8) % 40000) / 10.0, 1) AS ttft_ms,
            round((hash(i + 9) % 900000) / 10.0, 1) AS duration_ms,
            prompt_tokens * 4 + 300 AS body_bytes
        FROM range({rows}) AS t(i)) TO '{path}' (FORMAT {form})
    """)


def scan(folder: Path, form: str) -> dict[str, object]:
    """Read every column of the log once: the least that any answer costs."""
    connection = duckdb.connect(config={"threads": 2, "memory_limit": "2500MB"})
    pattern = f"{folder}/*.{form}"
    source = (
        f"read_parquet('{pattern}')" if form == "parquet" else f"read_json('{pattern}', format='newline_delimited')"
    )
    found = connection.execute(f"SELECT {', '.join(f'max({name})' for name in COLUMNS)} FROM {source}").fetchone()
    return {"columns": len(found or ())}


def report(folder: Path, form: str) -> dict[str, object]:
    """Classify the log as the command does, without drawing tables."""
    from kvfence.scope.relate import Request, relate
    from kvfence.scope.store import open_store

    last = [time.monotonic(), ""]

    def shown(stage: str, *_: int) -> None:
        if stage != last[1]:
            if last[1]:
                print(f"    {time.monotonic() - float(last[0]):6.1f} s  {last[1]}", file=sys.stderr)
            last[:] = [time.monotonic(), stage]

    with open_store(shown, spill=folder) as store:
        request = Request((f"{folder}/*.{form}",), pool=POOL, context=CONTEXT, decode_pool=DECODE_POOL)
        relation = relate(store, request)
        shown("")
        return {"counts": relation.counts}


def child(what: str, folder: Path, form: str) -> None:
    """Run one measurement and print it."""
    began = time.monotonic()
    found = (scan if what == "scan" else report)(folder, form)
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    found |= {"wall_s": round(wall, 1), "cpu_s": round(used.ru_utime + used.ru_stime, 1)}
    print(json.dumps(found | {"peak_gb": round(used.ru_maxrss / 1e6, 2)}))


def measure(what: str, folder: Path, form: str) -> dict[str, object]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--child", what, "--folder", str(folder), "--format", form]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    found: dict[str, object] = json.loads(done.stdout)
    print(f"  {what:6} {found}", flush=True)
    return found


def main() -> None:
    """Make a log, then scan and report in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--format", choices=("parquet", "jsonl"), default="parquet")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="Keep the log there; what is there already is not made again.")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.folder, arguments.format)
        return
    with tempfile.TemporaryDirectory(prefix="kvfence-bench-scope-") as own:
        folder = arguments.folder or Path(own)
        began = time.monotonic()
        paths = make(folder, arguments.rows, arguments.format)
        size = sum(path.stat().st_size for path in paths)
        print(f"{arguments.rows:,} rows, {size / 1e9:.2f} GB, {size / arguments.rows:.0f} bytes a row")
        print(f"made in {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        kinds = ("scan", "report")
        rounds = [[measure(what, folder, arguments.format) for what in kinds] for _ in range(arguments.rounds)]
        for name in ("cpu_s", "wall_s"):
            ratios = sorted(float(str(second[name])) / float(str(first[name])) for first, second in rounds)
            print(f"report / scan, {name}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
