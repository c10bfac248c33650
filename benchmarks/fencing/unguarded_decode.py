"""A decode worker that compares no head and verifies no page: what the fence is measured against, never served."""

from kvfence.core.ids import AttemptId
from kvfence.kv.seal import VerifyReport
from kvfence.protocol.commands import Verify
from kvfence.runtime.decode_worker import DecodeWorker
from kvfence.runtime.process import run_worker


class UnguardedDecode(DecodeWorker):
    """Decode that believes what it is told."""

    def _bad_pages(self) -> dict[AttemptId, list[int]]:
        return {}

    def _report(self, command: Verify) -> VerifyReport:
        manifest = command.manifest
        return VerifyReport(len(command.pages), manifest.num_tokens, manifest.digest)


if __name__ == "__main__":
    run_worker(UnguardedDecode)
