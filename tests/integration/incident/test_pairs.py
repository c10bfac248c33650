"""The incident's mechanics on real processes, with a tiny random model: what leaks, and that nothing is logged.

Texts of a random model say nothing, so only statuses and the oracle are asked.
"""

from pathlib import Path

import pytest

from kvfence.cli.compose import ServedModel
from kvfence.cli.incident_stage import Stage
from kvfence.incident import workload
from kvfence.incident.runs import Run, play, sample_of
from kvfence.incident.scenarios import CONTROL, SMALL_GUARDED, SMALL_UNGUARDED, Scenario
from kvfence.incident.workload import Workload
from kvfence.models.tokenizer import load_tokenizer
from kvfence.models.toy import write_toy_checkpoint

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A tiny random checkpoint."""
    path = write_toy_checkpoint(tmp_path_factory.mktemp("toy"))
    return ServedModel(path, "toy", 512, workload.CONTEXT_TOKENS)


async def played(model: ServedModel, scenario: Scenario, folder: Path) -> tuple[Run, Workload]:
    """Play one run on the toy."""
    stage = Stage(model, load_tokenizer(model.path))
    drawn = stage.draw(scenario, 1)
    return await play(scenario, drawn, folder, stage.open), drawn


def everything_in(folder: Path) -> bytes:
    """Read all traces and logs of a run."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.name != "keys")


async def test_with_the_guards_away_27_answers_are_computed_from_others_bytes(
    model: ServedModel, tmp_path: Path
) -> None:
    """HTTP 200 for all 27, each from other tenants' pages, a cut-off answer's among them; no text is in any file."""
    run, drawn = await played(model, SMALL_UNGUARDED, tmp_path)
    assert run.statuses == {"200": 27}
    assert len(run.leaked) == 27
    assert sum(judged.status for judged in run.report.judged) == 0
    assert any(leak.generated for leak in run.leaked)
    assert {answer.status for answer in run.others} == {200}
    assert sum(answer.was_cut for answer in run.others) == workload.ROUNDS
    sample = sample_of(run, drawn)
    assert sample is not None
    assert [row.foreign for row in sample.pages] == [False] + [True] * 7
    assert all(step.lines for step in sample.steps[:5])
    written = everything_in(tmp_path)
    assert not [m for record in drawn.records.values() for m in record.markers if m.encode() in written]


async def test_with_every_guard_all_27_are_refused(model: ServedModel, tmp_path: Path) -> None:
    """The engine's mistake is still there; HTTP 400 for all 27, and nothing is read."""
    run, _ = await played(model, SMALL_GUARDED, tmp_path)
    assert run.statuses == {"400": 27}
    assert run.leaks == ()
    assert {answer.error_code for answer in run.report.answers} == {"context_length_exceeded"}


async def test_one_process_refuses_with_the_same_mistake(model: ServedModel, tmp_path: Path) -> None:
    """The control: HTTP 400 for all 27."""
    run, _ = await played(model, CONTROL, tmp_path)
    assert run.statuses == {"400": 27}
    assert {answer.status for answer in run.others} == {200}
