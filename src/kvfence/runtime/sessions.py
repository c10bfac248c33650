"""Decode's receiving sessions over Mooncake: opened and tried at start, announced, rebuilt when pages need the fence.

Not for: shared memory, where the supervisor's reaping is the fence.
"""

import ipaddress
import sys

from kvfence.core.errors import SettingsError
from kvfence.core.layout import KVLayout
from kvfence.core.settings import Role, Settings
from kvfence.kv.storage import MemoryFile
from kvfence.protocol.decode_state import DecodeNode
from kvfence.protocol.lots import Quarantined
from kvfence.protocol.transitions import DecodePhase, Fence
from kvfence.wire.mooncake import CHECK_RECORDS, MooncakeTransport, Receiver, drain_s
from kvfence.wire.mooncake_engine import BATCH_PAGES_MAX, TIMEOUT_S, EngineSpec, find_protocol, load_library
from kvfence.wire.mooncake_probe import ProbeReport, probe, require_capable
from kvfence.wire.shm import SharedMemoryTransport

STARVED_SHARE = 4
"""A session is rebuilt under transfers in flight where more than this part (one in ...) of the pool waits for it."""

_IN_FLIGHT = (DecodePhase.GRANTED, DecodePhase.VERIFYING)


def uses_mooncake(settings: Settings) -> bool:
    """Is Mooncake the transport?"""
    return settings.transport.kind == "mooncake"


def fence_of(settings: Settings) -> Fence:
    """What ends the quarantine of decode's pages."""
    return MooncakeTransport.fence if uses_mooncake(settings) else SharedMemoryTransport.fence


def lands_in_order(settings: Settings) -> bool:
    """Does each record's head land before any byte behind it?"""
    return (MooncakeTransport if uses_mooncake(settings) else SharedMemoryTransport).lands_in_order


def spare_records(settings: Settings) -> int:
    """Records behind the pool that no sequence ever has."""
    return CHECK_RECORDS if uses_mooncake(settings) else 0


def spec_of(settings: Settings, role: Role) -> EngineSpec:
    """Where the engine of this role lives."""
    transport = settings.transport
    host = transport.prefill_host if role == "prefill" else transport.decode_host
    return EngineSpec(host, find_protocol(transport.protocol), transport.device)


def require_transport(settings: Settings) -> str | None:
    """Refuse a transport that cannot run here, before anything is loaded; say who else reaches the pages.

    Raises:
        SettingsError: Mooncake is not installed, an address is none, or a batch is larger than Mooncake takes.
    """
    if not uses_mooncake(settings):
        return None
    load_library()
    problems, exposed = [], []
    for name in ("prefill_host", "decode_host"):
        host = getattr(settings.transport, name)
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            problems.append(f"transport.{name} {host!r}: give a numeric IPv4 address of that worker's host")
            continue
        if not address.is_loopback:
            exposed.append(host)
    if settings.limits.batch_pages_max > BATCH_PAGES_MAX:
        problems.append(f"limits.batch_pages_max: Mooncake takes at most {BATCH_PAGES_MAX} pages at once")
    if problems:
        raise SettingsError(problems)
    if not exposed:
        return None
    return f"whoever reaches {' or '.join(exposed)} can read and write KV pages: Mooncake asks nobody who he is"


def open_sessions(settings: Settings, layout: KVLayout, memory: MemoryFile) -> Receiver:
    """Try Mooncake on this machine, refuse what does not hold, and open the first session over decode's pool.

    Raises:
        TransportError: names what does not hold.
    """
    spec, limit = spec_of(settings, "decode"), settings.limits.batch_pages_max
    report = probe(spec, layout, limit)
    require_capable(report, spec)
    sys.stderr.write(_statement(spec, report, limit, layout))
    return Receiver(spec, memory.fd, memory.nbytes)


def _statement(spec: EngineSpec, report: ProbeReport, batch_pages_max: int, layout: KVLayout) -> str:
    batch_bytes = batch_pages_max * layout.record_bytes
    rate, known_s = report.bytes_per_s / 1e6, drain_s(batch_bytes, report.bytes_per_s)
    return (
        f"decode: Mooncake over {spec.protocol} at {spec.host}: the fence is a new session; a batch of at most "
        f"{batch_pages_max} pages ({batch_bytes / 1e6:.1f} MB) is known after {known_s:.2f} s at the most "
        f"({rate:.0f} MB/s seen, time-out {TIMEOUT_S:.0f} s); heads before bodies is not promised "
        f"({report.num_out_of_order} of {report.num_records} records seen otherwise), so the comparison at read is a "
        "probe and no guarantee\n"
    )


def wants_session(node: DecodeNode) -> bool:
    """Should decode rebuild its session now?

    Yes where pages wait for nothing else and no transfer is in flight, which costs nobody anything; and where so many
    of them wait that somebody starves: then the transfers in flight are given up.
    """
    num_waiting = sum(len(entry.lot.pages) for entry in node.pool.quarantined.values() if _only_fence(node, entry))
    if not num_waiting:
        return False
    if not any(handoff.phase in _IN_FLIGHT for handoff in node.handoffs.values()):
        return True
    return num_waiting * STARVED_SHARE > node.pool.num_pages or _wanted(node) > node.pool.num_pages - num_waiting


def _only_fence(node: DecodeNode, entry: Quarantined) -> bool:
    """Will nobody say *drained* of these pages any more?"""
    handoff = node.handoffs.get(entry.attempt) if entry.attempt is not None else None
    answered = handoff is None or handoff.abort_answered
    return not entry.drains or answered or entry.writers.isdisjoint(node.lives.peers)


def _wanted(node: DecodeNode) -> int:
    if not node.waiting:
        return 0
    return node.capacity.num_pages(node.handoffs[node.waiting[0]].num_tokens) + 1
