"""What every test shares: almost nothing. Fixtures stand beside the tests that need them."""

import os

# Two threads of two test processes on two cores are slower than one, and results must not depend on their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may reach a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
