"""YAML with the line of every mapping, read by libyaml, with tags that are not ours read as plain values.

Not for: what the documents mean (``manifests.py``, ``routers.py``).
"""

import yaml

DOCUMENTS_MAX = 20_000


class LineDict(dict[str, object]):
    """A mapping that knows its line, and that of each key."""

    line: int | None = None
    key_lines: dict[str, int]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe: it makes no objects but plain ones."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> LineDict:
    loader.flatten_mapping(node)
    found = LineDict()
    found.line = node.start_mark.line + 1
    found.key_lines = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        found[key] = loader.construct_object(value_node, deep=True)
        found.key_lines[key] = key_node.start_mark.line + 1
    return found


def _unknown(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_multi_constructor("!", _unknown)


def load_yaml(text: str) -> tuple[list[object], list[str]]:
    """The documents of a stream, and what could not be read of it."""
    documents: list[object] = []
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            documents.append(document)
            if len(documents) >= DOCUMENTS_MAX:
                break
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        return documents, [f"not all of the YAML could be read: {type(error).__name__}"]
    return documents, []


def line_of(node: object, key: str | None = None) -> int | None:
    """The line of a mapping, or of one of its keys; None for what did not come from YAML."""
    if not isinstance(node, LineDict):
        return None
    return node.line if key is None else node.key_lines.get(key, node.line)
