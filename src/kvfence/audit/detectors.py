"""What several rules read out of one fact: whether the canary is asked for, whether a connector is NIXL's."""

from kvfence.audit.deployment import Engine
from kvfence.evidence.facts import FlagFact, Known, Unknown
from kvfence.evidence.versions import at_least

CANARY_SINCE = "0.5.13"


def canary_is_asked(engine: Engine) -> FlagFact:
    """Tell whether the canary is asked for; the fact is a word, none where it is off.

    An engine that says of its canary that it works, or cannot, has been asked for one; before 0.5.13 there is none.
    """
    asked, active, release = engine.facts.kv_canary_requested, engine.facts.kv_canary_active, engine.release
    if isinstance(release, Known) and at_least(release.value, CANARY_SINCE) is False:
        return Known(False, release.origin)
    if isinstance(asked, Unknown):
        return Known(True, active.origin) if isinstance(active, Known) else asked
    return Known(asked.value.lower() not in {"none", ""}, asked.origin, asked.default_of)


def uses_nixl(engine: Engine) -> FlagFact:
    """Tell whether the engine's connector is one of NIXL's."""
    connector = engine.facts.connector
    if isinstance(connector, Unknown):
        return Unknown(f"the connector is not known: {connector.reason}")
    return Known("nixl" in connector.value.lower(), connector.origin, connector.default_of)
