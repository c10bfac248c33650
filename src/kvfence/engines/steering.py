"""What an answer must match, as engines are told it: the JSON schema that the gateway's grammar was made of.

Not for: whether a schema can be enforced (``models/grammar.py`` tried it out before).
"""

from typing import Any

from msgspec import json


def schema_of(grammar: str) -> dict[str, Any]:
    """Give the schema that stands in a grammar, without what our own library wrote beside it."""
    schema: dict[str, Any] = json.decode(grammar)["grammars"][0]["json_schema"]
    return {name: value for name, value in schema.items() if name != "x-guidance"}
