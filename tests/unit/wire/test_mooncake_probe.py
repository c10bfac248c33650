"""The probe at start: a sound engine passes, and each thing that an engine may lack is refused by its name."""

import pytest
from msgspec.structs import replace

from kvfence.core.errors import TransportError
from kvfence.wire.mooncake_engine import EngineSpec
from kvfence.wire.mooncake_probe import ProbeReport, probe, require_capable
from tests.fake_mooncake import fake_mooncake
from tests.pools import LAYOUT

SPEC = EngineSpec("127.0.0.1")


def report_of(**faults: object) -> ProbeReport:
    """Probe a stand-in with these faults."""
    with fake_mooncake(**faults):
        return probe(SPEC, LAYOUT, 64)


def test_a_sound_engine_passes() -> None:
    """Everything holds, the rate is known, and no body was seen before its head."""
    report = report_of()
    assert not report.refused
    assert report.bytes_per_s > 0
    assert (report.num_records, report.num_out_of_order) == (16, 0)
    require_capable(report, SPEC)


@pytest.mark.parametrize(
    ("faults", "names"),
    [
        ({"careless": True}, {"success-means-landed", "reads-back", "new-session-works"}),
        ({"unbounded": True}, {"outside-is-refused", "old-session-is-refused"}),
        ({"outlives": True}, {"old-session-is-refused"}),
    ],
)
def test_what_an_engine_lacks_is_named(faults: dict[str, object], names: set[str]) -> None:
    """An engine that lies about success, checks no address, or lives on after its end is refused."""
    report = report_of(**faults)
    assert {finding.name for finding in report.refused} == names
    with pytest.raises(TransportError, match=min(names)):
        require_capable(report, SPEC)


def test_a_batch_too_large_for_the_time_out_is_refused() -> None:
    """A batch that needs more than half of the time-out at the rate seen would fail under load."""
    with fake_mooncake():
        report = probe(SPEC, replace(LAYOUT, page_size=1024), 1024)
        slow = probe(SPEC, LAYOUT, 10**9)
    assert not report.refused
    assert [finding.name for finding in slow.refused] == ["batch-ends-in-time"]
    assert "lower limits.batch_pages_max" in slow.refused[0].detail
