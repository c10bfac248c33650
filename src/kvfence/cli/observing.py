"""``--observe``: whether it may be, and what is said about it.

Not for: which guards it is about (``protocol/guards.py``).
"""

from kvfence.core.errors import SettingsError
from kvfence.core.settings import Settings
from kvfence.gateway.registry import is_loopback
from kvfence.protocol.guards import OBSERVABLE

ON_NETWORK = "--observe-on-network"
HEADLINE = "OBSERVING: answers whose pages fail verification are NOT refused"


def require_may_observe(settings: Settings, *, on_network: bool) -> None:
    """Refuse to observe where other machines' requests come in, unless that was said as well.

    Raises:
        SettingsError: the host is not loopback and the second flag is missing.
    """
    if not on_network and not is_loopback(settings.server.host):
        raise SettingsError(
            [
                f"--observe with --host {settings.server.host}: clients on other machines could be answered with other "
                f"tenants' text. Use a loopback host, leave --observe away, or say {ON_NETWORK} as well"
            ]
        )


def describe_danger() -> list[str]:
    """Say at start what observing means."""
    return [
        f"Counted and not obeyed: {', '.join(sorted(OBSERVABLE))}.",
        "Where one of them would have refused, the client gets the answer all the same: another tenant's text can be",
        "in it, and the pages are used again although a stray writer may be active. Use it to learn whether a guard",
        "would refuse honest traffic, with prompts that may leak, and for no longer than that.",
        'The counts: kvfence_guard_decisions_total{answer="observed"}; the log: refusals that begin with observed:',
    ]
