"""Whose an attempt is, and since when: remembered a while after its end, for pages outlive it in quarantine."""

import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from kvfence.core.ids import AttemptId, TenantId

OWNERS_MAX = 4096


class Owner(Struct, frozen=True):
    """An attempt's tenant. Units: since_s on the process's monotonic clock."""

    tenant: TenantId
    since_s: float


class Owners:
    """The last attempts of a gateway. Holds: at most ``OWNERS_MAX``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owners: OrderedDict[AttemptId, Owner] = OrderedDict()

    def note(self, attempt: AttemptId, tenant: TenantId) -> None:
        """An attempt was minted; one that is said again keeps its time."""
        if attempt not in self._owners:
            self._owners[attempt] = Owner(tenant, self._clock())
            if len(self._owners) > OWNERS_MAX:
                self._owners.popitem(last=False)

    def of(self, attempt: AttemptId) -> Owner | None:
        """Give the owner, where it is remembered."""
        return self._owners.get(attempt)
