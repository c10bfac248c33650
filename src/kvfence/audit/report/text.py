"""How a place in a source is shown: file, line, and what stands there."""

from kvfence.evidence.facts import Origin
from kvfence.evidence.visible import cell, plain


def place(origin: Origin) -> str:
    """Give where a value was read: file and line or URL, and the text's own time."""
    line = f":{origin.line}" if origin.line is not None else ""
    at = f" [{origin.at}]" if origin.at else ""
    return plain(f"{origin.source}{line}{at}")


def evidence(origin: Origin) -> str:
    """Give a place and what stands there."""
    said = origin.quote or origin.key
    return cell(f"{place(origin)}: {said}" if said else place(origin))
