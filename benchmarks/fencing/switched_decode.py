"""A decode worker that compares heads and verifies pages only while its switch is on; never served."""

from typing import Any

from fencing.switch import Switch

from kvfence.core.ids import AttemptId
from kvfence.kv.seal import VerifyReport
from kvfence.protocol.commands import Verify
from kvfence.runtime.decode_worker import DecodeWorker
from kvfence.runtime.process import run_worker


class SwitchedDecode(DecodeWorker):
    """Decode that, switched off, believes what it is told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.switch = Switch.from_environment()

    def _bad_pages(self) -> dict[AttemptId, list[int]]:
        return super()._bad_pages() if self.switch.fenced else {}

    def _report(self, command: Verify) -> VerifyReport:
        if self.switch.fenced:
            return super()._report(command)
        manifest = command.manifest
        return VerifyReport(len(command.pages), manifest.num_tokens, manifest.digest)


if __name__ == "__main__":
    run_worker(SwitchedDecode)
