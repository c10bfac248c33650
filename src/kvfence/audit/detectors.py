"""What several rules read out of one fact: whether the canary is asked for, whether a connector is NIXL's."""

from kvfence.audit.deployment import Engine
from kvfence.evidence.facts import FlagFact, Known, Unknown


def canary_is_asked(engine: Engine) -> FlagFact:
    """Tell whether the canary is asked for; the fact is a word, none where it is off."""
    asked = engine.facts.kv_canary_requested
    if isinstance(asked, Unknown):
        return asked
    return Known(asked.value.lower() not in {"none", ""}, asked.origin, asked.default_of)


def uses_nixl(engine: Engine) -> FlagFact:
    """Tell whether the engine's connector is one of NIXL's."""
    connector = engine.facts.connector
    if isinstance(connector, Unknown):
        return Unknown(f"the connector is not known: {connector.reason}")
    return Known("nixl" in connector.value.lower(), connector.origin, connector.default_of)
