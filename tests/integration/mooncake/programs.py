"""Worker programs over Mooncake with the arithmetic model: in a network namespace, and waiting before a batch, if told.

``python -m tests.integration.mooncake.programs`` is not run; ``prefill_program.py`` and ``decode_program.py`` are.
"""

import ctypes
import os
import time

from kvfence.core.settings import Role
from kvfence.wire.mooncake import MooncakeTransport
from kvfence.wire.transport import PageBatch
from tests.integration.runtime.faults import FaultFolder

PROGRAMS: dict[Role, str] = {
    "prefill": "tests.integration.mooncake.prefill_program",
    "decode": "tests.integration.mooncake.decode_program",
}
NAMESPACE = {"prefill": "TEST_NETNS_PREFILL", "decode": "TEST_NETNS_DECODE"}
_CLONE_NEWNET = 0x40000000


def enter_namespace(role: Role) -> None:
    """Move this process into the network namespace that its environment names, if it names one."""
    name = os.environ.get(NAMESPACE[role])
    if not name:
        return
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    os.close(fd)


def wait_before_batches() -> None:
    """Make every batch wait while a hang is armed and lasts, after its pages are known and before a byte is sent."""
    faults, write = FaultFolder.from_environment(), MooncakeTransport.write

    def waiting(self: MooncakeTransport, batch: PageBatch) -> None:
        fault = faults.armed()
        if fault is not None and fault.kind == "hang":
            faults.fire(batch.destination[0])
            while faults.hangs():
                time.sleep(0.002)
        write(self, batch)

    MooncakeTransport.write = waiting  # type: ignore[method-assign]
