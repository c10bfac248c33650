"""What the guards of a released engine let through: every finding that it should have, searched for."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvfence.prove.engines import Engine, Finding
from kvfence.prove.search import Limits, Result, Search
from kvfence.prove.story import Story, tell

LIMITS = Limits(cpu_s_max=120)


class Examined(Struct, frozen=True):
    """One finding; ``story`` is None where the search did not come upon it."""

    finding: Finding
    result: Result
    story: Story | None


def examine(engine: Engine) -> list[Examined]:
    """Search for each finding with this engine's guards."""
    found = []
    for finding in engine.findings:
        looking = Search(replace(finding.bounds, rules=engine.rules), LIMITS, (finding.property,))
        result = looking.run()
        way = next((way for way in result.broken if way.name == finding.property), None)
        found.append(Examined(finding, result, None if way is None else tell(looking, way)))
    return found


def document(engine: Engine, found: list[Examined]) -> dict[str, Any]:
    """Give what ``--json`` prints."""
    return {
        "engine": engine.name,
        "guards": msgspec.to_builtins(engine.facts),
        "findings": [
            {
                "name": each.finding.name,
                "property": each.finding.property,
                "found": each.story is not None,
                "exhausted": each.result.exhausted,
                "bound": each.result.bound,
                "states": each.result.states,
                "cpu_s": round(each.result.cpu_s, 3),
                "trace": msgspec.to_builtins(each.story.moments) if each.story is not None else [],
            }
            for each in found
        ],
        "exhausted": all(each.result.exhausted for each in found),
        "states": sum(each.result.states for each in found),
        "trace": next((msgspec.to_builtins(each.story.moments) for each in found if each.story is not None), []),
    }
