"""A decode worker over Mooncake with the arithmetic model, whose passes wait when a test says so."""

from kvfence.runtime import worker
from kvfence.runtime.process import run_worker
from tests.integration.mooncake.programs import enter_namespace
from tests.integration.runtime.arithmetic_decode import HeldDecode, load

if __name__ == "__main__":
    worker.BEAT_S = 0.1  # tests wait for heartbeats
    enter_namespace("decode")
    run_worker(HeldDecode, load)
