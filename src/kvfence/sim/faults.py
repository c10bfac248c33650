"""What may go wrong in a run, as switches; all off by default.

Each is a weight: how often this is chosen, against 1 for each thing that goes right.
"""

from msgspec import Struct


class Faults(Struct, frozen=True):
    """The switches.

    Network: ``lose``, ``duplicate``, ``confuse`` (a completion is repeated under another open attempt's id).
    Writes: ``corrupt``, ``misdirect``, ``stall`` (its batch is given up while bytes may still land), ``tear``
    (stopped for ever). People and time: ``cancel``, ``deadline``. Processes: ``kill_prefill``, ``kill_decode``,
    ``kill_gateway``, ``rebuild_session``, ``silence`` (the gateway takes a worker that lives for silent).
    ``reap_late``: a killed writer lives on for a while.
    Prefill's pool: ``spoil`` (a stray write into a page that is held or cached). Its index of prefixes: ``unsalted``
    (equal prompts of two tenants have equal keys), ``shared_early`` (it names pages as soon as they are granted).
    ``chores``: drivers say again what is unanswered and tell floors while work goes on (at rest they always do).
    Set-up: ``unzeroed`` tails, ``former_writes`` outstanding at start, ``layout_drift`` between the roles.
    """

    lose: float = 0
    duplicate: float = 0
    confuse: float = 0
    corrupt: float = 0
    misdirect: float = 0
    stall: float = 0
    tear: float = 0
    cancel: float = 0
    deadline: float = 0
    kill_prefill: float = 0
    kill_decode: float = 0
    kill_gateway: float = 0
    rebuild_session: float = 0
    silence: float = 0
    chores: float = 0
    spoil: float = 0
    unsalted: bool = False
    shared_early: bool = False
    reap_late: bool = False
    unzeroed: bool = False
    former_writes: int = 0
    layout_drift: bool = False


NONE = Faults()
"""Nothing goes wrong."""

EVERYTHING = Faults(
    lose=0.1,
    duplicate=0.1,
    confuse=0.1,
    corrupt=0.02,
    misdirect=0.05,
    stall=0.05,
    tear=0.01,
    cancel=0.01,
    deadline=0.003,
    kill_prefill=0.02,
    kill_decode=0.005,
    kill_gateway=0.005,
    rebuild_session=0.02,
    silence=0.01,
    chores=0.05,
    spoil=0.1,
    unsalted=True,
    reap_late=True,
    former_writes=3,
)
"""Everything that every guard together must survive."""
