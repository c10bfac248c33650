"""A pool's history: files, start-up logs, and what of them is refused."""

from datetime import datetime
from pathlib import Path

import pytest

from kvfence.core.errors import EvidenceError
from kvfence.scope.history import first_refused, load_history, vulnerable_of
from kvfence.scope.relation import Interval
from tests.unit.scope.logbook import history

START = (
    "[{at}] server_args={{'model_path': '/m/glm', 'disaggregation_mode': '{role}', 'version': '{version}'}}\n"
    "[{at} TP0] max_total_num_tokens={pool}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=48, context_len=1048576, available_gpu_mem=9.99 GB\n"
)


def test_every_start_of_a_log_begins_an_interval(tmp_path: Path) -> None:
    """The pool moves with each restart; decode's log cuts prefill's intervals where its own pool moves."""
    prefill, decode = tmp_path / "prefill.log", tmp_path / "decode.log"
    prefill.write_text(
        START.format(at="2026-08-20 00:00:00", role="prefill", version="0.5.19", pool=2_000_000)
        + START.format(at="2026-08-27 00:00:00", role="prefill", version="0.5.19", pool=681_280)
        + START.format(at="2026-09-09 19:04:00", role="prefill", version="0.5.22", pool=2_040_000),
        "utf-8",
    )
    decode.write_text(START.format(at="2026-09-01 00:00:00", role="decode", version="0.5.19", pool=2_100_000), "utf-8")
    found = load_history([f"{prefill}=pair-1", f"{decode}=pair-1"]).intervals
    shown = [(str(each.start)[:10], each.pool, each.decode_pool, each.release, each.vulnerable) for each in found]
    assert shown == [
        ("2026-08-20", 2_000_000, None, "0.5.19", True),
        ("2026-08-27", 681_280, None, "0.5.19", True),
        ("2026-09-01", 681_280, 2_100_000, "0.5.19", True),
        ("2026-09-09", 2_040_000, 2_100_000, "0.5.22", False),
    ]
    assert {(each.replica, each.engine, each.margin, each.context) for each in found} == {
        ("pair-1", "sglang", 6, 1_048_576)
    }
    assert found[1].end == datetime.fromisoformat("2026-09-01T00:00:00")


@pytest.mark.parametrize(
    ("release", "engine", "expected"),
    [
        ("0.5.19", "sglang", True),
        ("v0.5.9", None, True),
        ("0.5.20", "sglang", False),
        ("0.5.20rc1", "sglang", None),
        ("0.5.19+cu124", "sglang", True),
        ("0.5.19+vendor.3", "sglang", None),
        ("main", "sglang", None),
        ("0.32.0", "vllm", None),
        (None, "sglang", True),
        (None, "vllm", None),
        (None, None, True),
        ("0.11.0", None, None),
        ("0.11.0", "sglang", False),
    ],
)
def test_which_releases_are_vulnerable(release: str | None, engine: str | None, expected: bool | None) -> None:
    """Before 0.5.20 yes, from it on no; a fork, a build on the way, another engine and one with a number that may be
    another engine's cannot be told."""
    assert vulnerable_of(release, engine) is expected


def test_the_least_refused_length() -> None:
    """One more than the pool, or SGLang's min(context, pool) - 6."""
    assert first_refused(Interval(pool=681_280)) == 681_281
    assert first_refused(Interval(pool=681_280, context=1_048_576, margin=6)) == 681_274
    assert first_refused(Interval(pool=681_280, context=8_192, margin=6)) == 8_186
    assert first_refused(Interval()) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[interval]]\npool = 0\n", "above nought"),
        ("[[interval]]\npool = 99999999999999999999\n", "at most"),
        ("[[interval]]\nfrom = 0001-01-01T00:00:00+14:00\n", "is no time"),
        ("[[interval]]\npol = 5\n", "pol"),
        ("[[interval]]\npool = 'many'\n", "interval"),
        ("[[interval]]\nmode = 'solo'\n", "disaggregated, single"),
        ("[[interval]]\nrole = 'router'\n", "prefill or decode"),
        ("[[interval]]\nfrom = 'yesterday'\n", "is no time"),
        ("[[interval]]\nfrom = 2026-09-02\nto = 2026-09-01\n", "before it begins"),
        ("[[interval]]\npool = 5\n[[interval]]\npool = 6\n", "same place at the same time"),
        ("interval = []\n", "no interval"),
        ("[[interval", "pools.toml"),
    ],
)
def test_a_history_that_cannot_be_right_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Each mistake is refused with words that name it."""
    with pytest.raises(EvidenceError, match=says):
        load_history([history(tmp_path, text)])


def test_times_of_a_history_are_utc(tmp_path: Path) -> None:
    """A zone is honoured, a date is its midnight, and a time without a zone is UTC."""
    text = "[[interval]]\nfrom = 2026-09-01T08:00:00+08:00\nto = 2026-09-02\npool = 5\n"
    (found,) = load_history([history(tmp_path, text)]).intervals
    assert (str(found.start), str(found.end)) == ("2026-09-01 00:00:00", "2026-09-02 00:00:00")


def test_what_is_said_of_a_decode_worker_is_its_own(tmp_path: Path) -> None:
    """A decode worker named by its name has its start and its pool; others keep what was said of the pair."""
    text = '[[interval]]\nreplica = "pair-1"\npool = 5\ndecode_pool = 30\n'
    text += '[[interval]]\nrole = "decode"\nreplica = "pair-1"\nworkers = ["d1"]\nfrom = 2026-09-01\npool = 20\n'
    found = load_history([history(tmp_path, text)]).intervals
    shown = [(each.workers, str(each.decode_since)[:10], each.decode_pool, each.decode_most) for each in found]
    assert sorted(shown) == [((), "None", 30, 30), (("d1",), "2026-09-01", 20, 30)]
