"""A prefill worker with the incident's mistake: what does not fit is drained as one placeholder token.

The fault is in the engine, not in the guards: this program runs with every rule set. ``python -m`` it as the
supervisor starts any worker.
"""

from kvfence.driver.mutants import placeholder_on_refusal
from kvfence.incident.workload import PLACEHOLDER
from kvfence.protocol.admission import Capacity
from kvfence.protocol.commands import StartPrefill
from kvfence.runtime.prefill_worker import Job, PrefillWorker
from kvfence.runtime.process import run_worker


class FaultyPrefillWorker(PrefillWorker):
    """Prefill's process, with the incident's scheduler in front of its queue."""

    def start(self, capacity: Capacity) -> None:
        """Start with the mistake in place."""
        super().start(capacity)
        self.loop.rewrites.append(placeholder_on_refusal(capacity))

    def _begin_job(self, job: Job, command: StartPrefill) -> None:
        if command.num_tokens < len(job.token_ids):
            job.token_ids = [PLACEHOLDER]
        super()._begin_job(job, command)


def main() -> None:
    """Run the worker on the lifeline named on the command line."""
    run_worker(FaultyPrefillWorker)


if __name__ == "__main__":
    main()
