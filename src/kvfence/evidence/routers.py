"""Routers and load balancers: what they do when a client leaves, when a time-out comes, and whether they retry.

A retry or an abort in the middle of a transfer is what sets pages free under a writer. Covers sglang-router commands,
nginx and Envoy. Not for: what the gateways do at run time.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kvfence.evidence.facts import Origin, SourceFacts
from kvfence.evidence.forms import reading
from kvfence.evidence.lines import quote
from kvfence.evidence.readings import Form, Found, Line, Notebook
from kvfence.evidence.yaml_lines import line_of

_ROUTER = re.compile(r"sglang_router\.launch_router|sglang::router|\bsgl-router\b|\bsmg\b|\bamg\b")
_RETRIED = {"timeout", "error", "http_500", "http_502", "http_503", "http_504", "non_idempotent"}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def is_router(words: Sequence[str]) -> bool:
    """Whether a command launches the SGLang router."""
    return any(_ROUTER.search(word) for word in words)


def read_router_words(words: Sequence[str]) -> Iterator[Found]:
    """Facts of a router's command line."""
    from kvfence.evidence.commands import flags

    given = flags(words, {})
    yield Found("engine", "sglang-router", 9)
    yield Found(
        "retries",
        not given.get("disable_retries", False),
        5,
        "" if "disable_retries" in given else "sglang-router: retries on",
    )
    timeout = str(given.get("request_timeout_secs", ""))
    if timeout.isdigit():
        yield Found("transfer_timeout_s", float(timeout), 1)
    endpoint = given.get("health_check_endpoint")
    yield Found("health_check", f"httpGet {endpoint or '/health'}", 5, "" if endpoint else "sglang-router: /health")
    if given.get("api_key"):
        yield Found("api_key_set", True)


def _read_router_line(match: re.Match[str], line: Line) -> Iterable[Found]:
    from kvfence.evidence.commands import split

    parts = [line.text[match.start() :]]
    for following in line.rest(60):
        if not parts[-1].rstrip().endswith("\\"):
            break
        parts.append(following)
    yield from read_router_words(split("\n".join(parts)))


FORMS: tuple[Form, ...] = (
    reading(
        "",
        ("sglang_router.launch_router", "sgl-router ", "smg launch"),
        r"sglang_router\.launch_router\b|\bsgl-router --?\w|\bsmg launch\b",
        _read_router_line,
    ),
)


def seconds(text: str) -> float | None:
    """A duration of nginx or Envoy in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|)", str(text).strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None


def read_nginx(name: str, text: str) -> list[SourceFacts] | None:
    """The facts of an nginx configuration, read by crossplane without following includes."""
    import crossplane

    from kvfence.evidence.gather import facts_of

    with tempfile.TemporaryDirectory(prefix="kvfence-") as directory:
        path = Path(directory) / "nginx.conf"
        path.write_text(text, "utf-8")
        parsed = crossplane.parse(str(path), single=True, check_ctx=False, check_args=False, comments=False)
    book = Notebook(name)
    statements = [each for config in parsed.get("config", []) for each in _flatten(config.get("parsed", []))]
    if not any(each["directive"] in ("proxy_pass", "grpc_pass") for each in statements):
        return None
    for error in parsed.get("errors", [])[:3]:
        book.problems.append(f"nginx: line {error.get('line')}: not understood")
    _read_statements(book, statements)
    return [facts_of(book, "router")]


def _flatten(block: Iterable[Mapping[str, object]], depth: int = 0) -> Iterator[dict[str, object]]:
    for each in block:
        yield dict(each)
        inner = each.get("block")
        if isinstance(inner, list) and depth < 30:
            yield from _flatten(inner, depth + 1)


def _read_statements(book: Notebook, statements: Sequence[Mapping[str, object]]) -> None:
    named = {str(each["directive"]): each for each in statements}
    _put(book, Found("engine", "nginx", 9), next(iter(statements)))
    ignores = named.get("proxy_ignore_client_abort")
    keeps = ignores is not None and _arguments(ignores) == ["on"]
    _put(
        book,
        Found("aborts_on_disconnect", not keeps, 5, "" if ignores else "nginx: proxy_ignore_client_abort off"),
        ignores or _proxy(statements),
    )
    upstream = named.get("proxy_next_upstream")
    retries = upstream is None or bool(_RETRIED & set(_arguments(upstream)))
    posts = upstream is not None and "non_idempotent" in _arguments(upstream)
    tries = named.get("proxy_next_upstream_tries")
    once = tries is not None and _arguments(tries) == ["1"]
    # nginx passes a POST to another server only before it was sent, unless non_idempotent is set.
    _put(
        book,
        Found("retries", retries and posts and not once, 5, "" if upstream else "nginx: no non_idempotent retry"),
        upstream or _proxy(statements),
    )
    timeout = named.get("proxy_read_timeout")
    value = seconds(_arguments(timeout)[0]) if timeout is not None and _arguments(timeout) else 60.0
    if value is not None:
        _put(
            book,
            Found("router_timeout_s", value, 5, "" if timeout else "nginx: proxy_read_timeout 60s"),
            timeout or _proxy(statements),
        )
    check = named.get("health_check")
    if check is not None:
        _put(book, Found("health_check", "nginx " + " ".join(_arguments(check))), check)


def _proxy(statements: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    return next(each for each in statements if each["directive"] in ("proxy_pass", "grpc_pass"))


def _arguments(statement: Mapping[str, object]) -> list[str]:
    args = statement.get("args")
    return [str(each) for each in args] if isinstance(args, list) else []


def _put(book: Notebook, found: Found, statement: Mapping[str, object]) -> None:
    line = statement.get("line")
    text = f"{statement['directive']} {' '.join(_arguments(statement))};"
    book.add(found, Origin(book.source, line if isinstance(line, int) else None, quote(text)))


def read_envoy(name: str, documents: Iterable[Mapping[str, object]]) -> list[SourceFacts]:
    """The facts of an Envoy configuration: route time-outs and retries, idle time-outs, health checks."""
    from kvfence.evidence.gather import facts_of

    book = Notebook(name)
    for document in documents:
        _put_envoy(book, Found("engine", "envoy", 9), "static_resources", document)
        # Envoy resets the upstream stream when the downstream one is reset; there is no setting against it.
        _put_envoy(
            book,
            Found("aborts_on_disconnect", True, 5, "envoy: a downstream reset resets the upstream stream"),
            "static_resources",
            document,
        )
        retries = False
        for key, value, node in _nodes(document, 0):
            if key == "route" and isinstance(value, Mapping):
                timeout = seconds(str(value.get("timeout", "15s")))
                if timeout is not None:
                    default = "" if "timeout" in value else "envoy: route timeout 15s"
                    _put_envoy(book, Found("router_timeout_s", timeout, 5, default), "timeout", value)
            if key == "retry_policy" and isinstance(value, Mapping):
                retries = True
                _put_envoy(book, Found("retries", True), "retry_policy", node)
            if key == "health_checks" and isinstance(value, list):
                kind = next(
                    (
                        each
                        for each in ("http_health_check", "tcp_health_check", "grpc_health_check")
                        if value and each in value[0]
                    ),
                    "health check",
                )
                path = value[0][kind].get("path", "") if value and isinstance(value[0].get(kind), Mapping) else ""
                _put_envoy(book, Found("health_check", f"envoy {kind} {path}".strip()), "health_checks", node)
        if not retries:
            _put_envoy(book, Found("retries", False, 5, "envoy: no retry_policy"), "static_resources", document)
    return [facts_of(book, "router")]


def _nodes(node: object, depth: int) -> Iterator[tuple[str, object, Mapping[str, object]]]:
    if depth > 60:
        return
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield str(key), value, node
            yield from _nodes(value, depth + 1)
    elif isinstance(node, list):
        for item in node:
            yield from _nodes(item, depth + 1)


def _put_envoy(book: Notebook, found: Found, key: str, node: Mapping[str, object]) -> None:
    shown = json.dumps({key: node.get(key)}, default=str)[:300] if key in node and key != "static_resources" else key
    book.add(found, Origin(book.source, line_of(node, key), quote(shown), None, key))
