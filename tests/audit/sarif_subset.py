"""The essential part of SARIF 2.1.0 as a schema: the objects that an audit uses, their required and known keys.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0, sections 3.13 to 3.58.
"""

from typing import Any

MESSAGE = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {"text": {"type": "string"}},
}
PROPERTIES = {"type": "object"}


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


_REGION = _closed([], startLine={"type": "integer", "minimum": 1}, snippet=MESSAGE)
_ARTIFACT = _closed([], uri={"type": "string", "pattern": r"^[\x21-\x7e]+$"})
_PHYSICAL = _closed([], artifactLocation=_ARTIFACT, region=_REGION)
_LOCATION = _closed([], physicalLocation=_PHYSICAL, message=MESSAGE)
_SUPPRESSION = _closed(["kind"], kind={"enum": ["inSource", "external"]}, justification={"type": "string"})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_RESULT = _closed(
    ["message"],
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": 0},
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    level=_LEVEL,
    message=MESSAGE,
    locations={"type": "array", "items": _LOCATION},
    suppressions={"type": "array", "items": _SUPPRESSION},
    properties=PROPERTIES,
)
_RULE = _closed(
    ["id"],
    id={"type": "string"},
    name={"type": "string"},
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=_closed([], level=_LEVEL),
    properties=PROPERTIES,
)
_DRIVER = _closed(
    ["name"], name={"type": "string"}, version={"type": "string"}, rules={"type": "array", "items": _RULE}
)
_RUN = _closed(
    ["tool"],
    tool=_closed(["driver"], driver=_DRIVER),
    results={"type": "array", "items": _RESULT},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
)
SCHEMA = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string"},
        "version": {"enum": ["2.1.0"]},
        "runs": {"type": "array", "items": _RUN},
    },
}
