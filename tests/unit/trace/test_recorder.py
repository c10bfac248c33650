"""The recorder wraps ``step``; the reader refuses what is not a whole trace."""

from pathlib import Path

import pytest

from kvfence.core.errors import TraceError
from kvfence.core.ids import Incarnation
from kvfence.protocol.admission import Capacity
from kvfence.protocol.events import PeerUp
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.node import Lives
from kvfence.trace.reader import read_trace
from kvfence.trace.recorder import Recorder, TraceFile

ME, PEER = Incarnation("a" * 32), Incarnation("b" * 32)


def record(path: Path, num_steps: int, bytes_max: int = 1 << 20) -> None:
    """Record some steps of a gateway node."""
    recorder = Recorder(TraceFile(path, bytes_max), clock_ns=lambda: 7)
    node = GatewayNode(Lives(ME), Capacity(16, 1024, 64, 65))
    rules = Rules.without("fits@gateway")
    recorder.begin(rules, "gateway", node)
    for _ in range(num_steps):
        node = recorder.step(rules, node, PeerUp(PEER, writes=False)).node  # type: ignore[assignment]
    recorder.close()


def test_every_step_is_read_back(tmp_path: Path) -> None:
    """Header and steps come back as they were recorded."""
    record(tmp_path / "t.ndjson", 3)
    header, steps = read_trace(tmp_path / "t.ndjson")
    lines = list(steps)
    assert header.role == "gateway"
    assert header.absent == ("fits@gateway",)
    assert [line.n for line in lines] == [1, 2, 3]
    assert lines[0].event == PeerUp(PEER, writes=False)


def test_a_full_file_is_rotated_once_and_begins_with_its_header(tmp_path: Path) -> None:
    """At most two files of the bound lie on disk, each readable alone."""
    record(tmp_path / "t.ndjson", 200, bytes_max=4000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.ndjson", "t.ndjson.1"]
    for path in tmp_path.iterdir():
        assert path.stat().st_size <= 4000
        header, steps = read_trace(path)
        assert header.incarnation == ME
        assert list(steps)


def test_a_trace_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Traces name tenants' attempts; others on the machine cannot read them."""
    record(tmp_path / "t.ndjson", 1)
    assert (tmp_path / "t.ndjson").stat().st_mode & 0o077 == 0


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that cannot be written is given up, once and aloud; the node goes on."""
    (tmp_path / "t.ndjson").symlink_to("/dev/full")
    record(tmp_path / "t.ndjson", 2000)
    said = capsys.readouterr().err
    assert said.count("not written any more (No space left on device)") == 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: raw[:-5], "truncated"),
        (lambda raw: b"".join(raw.splitlines(keepends=True)[1:]), "not a trace header"),
        (lambda raw: raw.replace(b'"n":2', b'"n":9'), "step 9 follows step 1"),
        (lambda raw: raw.replace(b"PeerUp", b"PeerOp"), "no trace line"),
        (lambda raw: raw.replace(b'"schema":2', b'"schema":99'), "schema 99"),
        (lambda raw: raw + raw.splitlines(keepends=True)[0], "second header"),
    ],
)
def test_a_spoilt_trace_is_refused(tmp_path: Path, spoil: object, says: str) -> None:
    """Truncated, beheaded, edited or joined traces are never read as whole."""
    path = tmp_path / "t.ndjson"
    record(path, 3)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TraceError, match=says):
        list(read_trace(path)[1])
