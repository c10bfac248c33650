"""A verdict says what the record bears out, and no more."""

import math
import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvfence.probe.chance import rate_above
from kvfence.probe.exchange import Cut, Record
from kvfence.probe.power import power_of
from kvfence.probe.verdict import UNBOUNDED, Verdict, judge
from tests.unit.probe.endpoints import Temper, record
from tests.unit.probe.faults import FAULTS

SOUND = record(3, Temper(echo=1.0))
REFUSED = tuple(each for each in SOUND.exchanges if not each.is_answer)
LEAKY = record(7, change=FAULTS["foreign-marker"], rungs=52)


def test_silence_is_bounded_by_what_could_have_been_seen() -> None:
    """The bound is -ln(0.025) over the counted answers, each times the echo rate's lower limit at 2.5 %."""
    told = judge(SOUND)
    power = told.power
    assert told.verdict is Verdict.CLEAN
    assert power.seen == power.controls
    assert power.chance == pytest.approx(rate_above(power.seen, power.controls, 0.025))
    assert told.bound == pytest.approx(-math.log(0.025) / (power.counted * power.chance))
    assert told.unbounded == UNBOUNDED


def test_refusals_and_the_time_before_any_marker_count_for_nothing() -> None:
    """Of the two first controls only one other tenant is heard before; refused prompts carry no text."""
    power = power_of(SOUND)
    oversize = next(each for each in power.phases if each.phase == "oversize")
    assert oversize.refused > 0
    assert oversize.counted == oversize.answered == oversize.requests - oversize.refused
    calibrate = next(each for each in power.phases if each.phase == "calibrate")
    assert calibrate.counted < calibrate.answered


def test_a_model_that_echoes_less_gives_a_wider_bound() -> None:
    """Detection power goes into the bound."""
    weak = judge(record(3, Temper(echo=0.6)))
    assert weak.verdict is Verdict.CLEAN
    assert weak.bound is not None
    assert weak.bound > (judge(SOUND).bound or 1)


@pytest.mark.parametrize("cut", [Cut.STOPPED, Cut.GONE, Cut.OVERLOAD])
def test_a_run_that_was_ended_is_never_clean(cut: Cut) -> None:
    """It could not tell, and says why; what had been found before holds."""
    told = judge(replace(SOUND, cut=cut, cut_why="it went"))
    assert (told.verdict, told.bound) == (Verdict.UNKNOWN, None)
    assert str(cut) in told.why[0]
    assert judge(replace(LEAKY, cut=cut)).verdict is Verdict.LEAK


def test_a_spent_budget_keeps_the_verdict() -> None:
    """Fewer requests, a wider bound, the same word."""
    told = judge(replace(SOUND, cut=Cut.BUDGET))
    assert told.verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (record(3, Temper(echo=0.0)), "repeats a marker in none of"),
        (replace(SOUND, exchanges=()), "no request was answered"),
        (replace(SOUND, exchanges=REFUSED), "everything was refused"),
        (replace(SOUND, exchanges=SOUND.exchanges[:12]), "allow more requests"),
        (replace(SOUND, planted={"tenant-1": SOUND.planted["tenant-1"]}), "one tenant"),
    ],
    ids=["no echo", "nothing sent", "all refused", "too few", "one tenant"],
)  # fmt: skip
def test_where_silence_says_nothing_it_could_not_tell(made: Record, word: str) -> None:
    """No positive control, no answers, too few of them, nobody else: each is named."""
    told = judge(made)
    assert told.verdict is Verdict.UNKNOWN
    assert any(word in reason for reason in told.why)


def test_evidence_tells_no_text_unless_it_is_kept() -> None:
    """Digest and length stand there; the text only where it was asked for. Two reports share no digest."""
    leaky = LEAKY
    told, again, kept = judge(leaky), judge(leaky), judge(leaky, keep_evidence=True)
    evidence = told.findings[0].evidence
    assert evidence
    assert all(each.text is None and each.length > 0 and len(each.digest) == 32 for each in evidence)
    assert not {each.digest for each in evidence} & {each.digest for each in again.findings[0].evidence}
    texts = {each.ask.number: each.text for each in leaky.exchanges}
    assert [each.text for each in kept.findings[0].evidence] == [texts[each.request] for each in evidence]


def test_a_leak_comes_with_a_script_that_a_shell_takes(tmp_path: Path) -> None:
    """Both prompts stand in it, keys are variables' names, no answer is in it, and it runs against nobody home."""
    leaky = LEAKY
    told = judge(leaky)
    assert told.reproducer is not None
    assert "KEY_3" in told.reproducer
    assert all(each.text not in told.reproducer for each in leaky.exchanges if each.text)
    script = tmp_path / "leak.sh"
    script.write_text(told.reproducer.replace("seq 20", "seq 1"))
    ran = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert "not seen" in ran.stdout
    assert judge(SOUND).reproducer is None


CURL = """#!/bin/sh
printf '%s\\n' "$@" >> "$0.heard"
cat > /dev/null
"""


def test_the_script_asks_with_the_headers_and_the_authorities_of_the_run(tmp_path: Path) -> None:
    """Every --header-env comes out of its variable, never out of the script; certificates are checked as they were."""
    target = replace(LEAKY.target, headers={"x-team": "TEAM", "x-o'dd$`": "ODD"}, ca="my ca.pem")
    script, curl = tmp_path / "leak.sh", tmp_path / "curl"
    told = judge(replace(LEAKY, target=target)).reproducer or ""
    script.write_text(told.replace("seq 20", "seq 1"))
    curl.write_text(CURL)
    curl.chmod(0o755)
    values = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TEAM": "blue $(id)", "ODD": 'a "b"'}
    subprocess.run(["sh", str(script)], env=values, capture_output=True, timeout=60, check=True)
    heard = Path(f"{curl}.heard").read_text().splitlines()
    assert heard.count("x-team: blue $(id)") == heard.count('x-o\'dd$`: a "b"') == heard.count("my ca.pem") == 2
    assert "blue" not in told
    insecure = judge(replace(LEAKY, target=replace(LEAKY.target, insecure=True))).reproducer or ""
    assert "--insecure" in insecure
    assert "--insecure" not in told


def test_another_tenants_marker_in_headers_is_a_leak() -> None:
    """A value of a header accuses as an answer does; its evidence is the headers', redacted, and says so."""
    planted = SOUND.planted
    owner = next(iter(planted))
    late = [each for each in SOUND.exchanges if each.ask.tenant != owner and each.is_answer][-3:]
    marked = {
        each.ask.number: replace(each, headers=f"text/plain\n{planted[owner][at]}") for at, each in enumerate(late)
    }
    leaky = replace(SOUND, exchanges=tuple(marked.get(each.ask.number, each) for each in SOUND.exchanges))
    told = judge(leaky)
    (finding,) = [each for each in told.findings if each.detector == "foreign-marker"]
    assert told.verdict is Verdict.LEAK
    assert set(finding.requests) == set(marked)
    assert all(each.seen.endswith(", in headers") and each.text is None for each in finding.evidence)
    (kept, *_) = judge(leaky, keep_evidence=True).findings[0].evidence
    assert kept.text == marked[kept.request].headers
