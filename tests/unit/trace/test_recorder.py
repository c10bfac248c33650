"""The recorder wraps ``step``; the reader refuses what is not a whole trace."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvfence.core.errors import TraceError
from kvfence.core.ids import Incarnation
from kvfence.protocol.admission import Capacity
from kvfence.protocol.decode_state import DecodeNode, start_decode
from kvfence.protocol.events import PeerUp
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.guards import Rules
from kvfence.protocol.lots import new_pool
from kvfence.protocol.node import Lives
from kvfence.protocol.prefill import PrefillNode
from kvfence.protocol.step import Node
from kvfence.protocol.transitions import Fence
from kvfence.trace.reader import TraceReader, parts_of, read_trace
from kvfence.trace.record import begun, sealed_line
from kvfence.trace.recorder import Recorder, TraceFile

ME, PEER = Incarnation("a" * 32), Incarnation("b" * 32)
DEEP = b"[" * 100_000 + b"]" * 100_000
CAPACITY = Capacity(16, 1024, 64, 65)
NODES = (
    GatewayNode(Lives(ME), CAPACITY),
    PrefillNode(Lives(ME), CAPACITY, "a layout", new_pool(70), batch_pages_max=3, cached_lots_max=5),
    DecodeNode(Lives(ME), CAPACITY, "a layout", Fence.NEW_SESSION, new_pool(80), offers_waiting_max=9),
)


def role_of(node: Node) -> str:
    """Name a node's role."""
    return type(node).__name__.removesuffix("Node").lower()


def record(path: Path, num_steps: int, bytes_max: int = 1 << 20) -> None:
    """Record some steps of a gateway node."""
    recorder = Recorder(TraceFile(path, bytes_max), clock_ns=lambda: 7)
    node = NODES[0]
    rules = Rules.without("fits@gateway")
    recorder.begin(rules, "gateway", node)
    for _ in range(num_steps):
        node = recorder.step(rules, node, PeerUp(PEER, writes=False)).node  # type: ignore[assignment]
    recorder.close()


def without(raw: bytes, number: int) -> bytes:
    """Cut a line out, counted from 0."""
    lines = raw.splitlines(keepends=True)
    return b"".join(lines[:number] + lines[number + 1 :])


def swapped(raw: bytes, one: int, other: int) -> bytes:
    """Exchange two lines."""
    lines = raw.splitlines(keepends=True)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def resealed(raw: bytes) -> bytes:
    """Make the sums anew, as whoever edits with care would."""
    lines, total = [], 0
    for line in raw.splitlines():
        sealed, total = sealed_line(line[: line.rfind(b',"sum":')] + b"}", total)
        lines.append(sealed)
    return b"".join(lines)


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


def test_a_full_file_and_its_successor_are_one_trace(tmp_path: Path) -> None:
    """Read together they begin and end as the recorder did; the later one alone does not begin at step 1."""
    record(tmp_path / "t.ndjson", 30, bytes_max=4000)
    reader = TraceReader(*parts_of(tmp_path / "t.ndjson"))
    assert [line.n for line in reader.steps()] == list(range(1, 31))
    assert reader.ended
    assert next(read_trace(tmp_path / "t.ndjson")[1]).n > 1


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
@pytest.mark.parametrize("rules", [Rules.all(), Rules.without("fence-on-start"), Rules.observing()])
def test_a_header_tells_how_its_node_began(tmp_path: Path, node: Node, rules: Rules) -> None:
    """What the header says makes the very node that was recorded, whatever its kind and rules."""
    if isinstance(node, DecodeNode):
        node = start_decode(rules, node)
    recorder = Recorder(TraceFile(tmp_path / "t.ndjson", 1 << 20), clock_ns=lambda: 7)
    recorder.begin(rules, role_of(node), node)
    recorder.close()
    assert begun(TraceReader(tmp_path / "t.ndjson").header) == (rules, node)


def test_only_a_trace_that_was_closed_has_an_end(tmp_path: Path) -> None:
    """What a killed worker leaves is read as far as it goes, and is not said to have ended."""
    record(tmp_path / "t.ndjson", 3)
    whole = (tmp_path / "t.ndjson").read_bytes()
    (tmp_path / "cut.ndjson").write_bytes(without(whole, 4))
    for name, ended in (("t.ndjson", True), ("cut.ndjson", False)):
        reader = TraceReader(tmp_path / name)
        assert len(list(reader.steps())) == 3
        assert reader.ended is ended


def test_rules_of_another_build_begin_nothing(tmp_path: Path) -> None:
    """A header that names a guard we do not have cannot be replayed."""
    record(tmp_path / "t.ndjson", 1)
    header = replace(TraceReader(tmp_path / "t.ndjson").header, absent=("foresight@decode",))
    with pytest.raises(TraceError, match="foresight@decode"):
        begun(header)


@pytest.mark.parametrize("pages", [-1, 1 << 40])
def test_a_pool_that_nobody_has_begins_nothing(tmp_path: Path, pages: int) -> None:
    """A header's word alone does not fill the memory."""
    record(tmp_path / "t.ndjson", 1)
    header = TraceReader(tmp_path / "t.ndjson").header
    with pytest.raises(TraceError, match="can be replayed"):
        begun(replace(header, role="prefill", node=replace(header.node, pool_pages=pages)))


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
        (lambda raw: raw.replace(b'"n":2', b'"n":9'), "line 3 is not as it was written"),
        (lambda raw: raw.replace(b'"absent":["fits@gateway"]', b'"absent":[]'), "line 1 is not as it was written"),
        (lambda raw: raw.replace(b'"schema":4', b'"schema":99'), "schema 99"),
        (lambda raw: without(raw, 2), "line 3 is not as it was written"),
        (lambda raw: swapped(raw, 2, 3), "line 3 is not as it was written"),
        (lambda raw: resealed(raw.replace(b'"n":2', b'"n":9')), "step 9 follows step 1"),
        (lambda raw: resealed(raw.replace(b"PeerUp", b"PeerOp")), "no trace line"),
        (lambda raw: resealed(raw.replace(b'"n":2', b'"n":2,"x":' + DEEP)), "line 3 is no trace line"),
        (lambda raw: resealed(raw.replace(b'"schema":4', b'"x":' + DEEP + b',"schema":4')), "not a trace header"),
        (lambda raw: resealed(without(raw, 3)), "ends after step 3, but step 2"),
        (lambda raw: resealed(raw + raw.splitlines(keepends=True)[0]), "second header"),
        (lambda raw: resealed(raw + raw.splitlines(keepends=True)[1]), "after the end"),
    ],
)
def test_a_spoilt_trace_is_refused(tmp_path: Path, spoil: object, says: str) -> None:
    """Truncated, beheaded, edited or joined traces are never read as whole."""
    path = tmp_path / "t.ndjson"
    record(path, 3)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TraceError, match=says):
        list(read_trace(path)[1])


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than any step is refused there, however long it goes on."""
    path = tmp_path / "t.ndjson"
    record(path, 3)
    assert len(list(read_trace(path)[1])) == 3
    monkeypatch.setattr("kvfence.trace.reader.LINE_BYTES_MAX", max(map(len, path.read_bytes().splitlines())) + 1)
    assert len(list(read_trace(path)[1])) == 3
    path.write_bytes(path.read_bytes()[:-1] + b" " * 1000 + b"\n")
    with pytest.raises(TraceError, match="line 5 is longer than"):
        list(read_trace(path)[1])
