"""Live endpoints: asks a server what it says of itself, on the URL given and nowhere else.

A base URL is asked for the known read-only paths of each engine; a URL with a path is asked for that alone.
Everything a server says is one source. Not for: sending prompts (``kvfence probe``).
"""

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from kvfence.evidence import kvfence_server
from kvfence.evidence.answers import note_answer, origin_of
from kvfence.evidence.facts import Origin, SourceFacts
from kvfence.evidence.fetch import Answer, checked, get, is_url, shown
from kvfence.evidence.readings import Found
from kvfence.evidence.scan import Scan
from kvfence.evidence.sources import Block

__all__ = ["PATHS", "is_url", "read_endpoint"]

PATHS = (
    "/server_info",
    "/v1/models",
    "/metrics",
    "/version",
    "/model_info",
    "/props",
    "/info",
    "/v1/loads",
    "/health",
    "/live",
)
"""Read-only paths of SGLang, vLLM, llama.cpp, TGI, Dynamo and kvfence."""

_OLD_NAMES = {"/server_info": "/get_server_info", "/model_info": "/get_model_info"}


def read_endpoint(url: str, token_variable: str | None = None) -> list[SourceFacts]:
    """The facts of one URL; an endpoint that does not answer gives facts that are all unknown, with the reason.

    Raises:
        EvidenceError: the URL holds credentials, or the token's variable is not set.
    """
    if url.startswith("prometheus+"):
        from kvfence.evidence.prometheus import read_prometheus

        return read_prometheus(url.removeprefix("prometheus+"), token_variable)
    base = checked(url).rstrip("/")
    if urlsplit(base).path:
        answers = [get(base, token_variable)]
    else:
        answers = _ask_all(base, token_variable)
    return facts_of_answers(shown(base), answers, asked_with_token=token_variable is not None)


def _ask_all(base: str, token_variable: str | None) -> list[Answer]:
    answers: list[Answer] = []
    for path in PATHS:
        answer = get(base + path, token_variable)
        if answer.status == 404 and path in _OLD_NAMES:
            answer = get(base + _OLD_NAMES[path], token_variable)
        answers.append(answer)
        if answer.status == 0 and len(answers) == 1:
            break  # nobody there: nine more time-outs would say no more
    return answers


def facts_of_answers(base: str, answers: list[Answer], asked_with_token: bool = False) -> list[SourceFacts]:
    """The facts of everything that one server answered."""
    from kvfence.evidence.gather import FORMS, facts_of_scan

    scan = Scan(base, FORMS)
    for answer in answers:
        if answer.status == 200:
            _note(scan, answer)
    shared = scan.shared()
    for answer in answers:
        if answer.problem:
            shared.problems.append(f"{answer.url}: {answer.problem}")
        if answer.status in (401, 403):
            shared.problems.append(f"{answer.url}: HTTP {answer.status}; name the variable that holds the token")
        _note_key(scan, answer, asked_with_token)
    return facts_of_scan(scan, "endpoint")


def _note(scan: Scan, answer: Answer) -> None:
    document = _json(answer.body)
    if isinstance(document, Mapping):
        if kvfence_server.is_health(document):
            _note_workers(scan, document, answer.url)
            return
        if note_answer(scan.shared(), document, answer.url):
            return
        if "result" not in document.get("data", {}) if isinstance(document.get("data"), Mapping) else True:
            return
    if answer.body.lstrip()[:1] == b"<":
        scan.shared().problems.append(f"{answer.url}: a page for people, not an engine's answer")
        return
    scan.feed([Block(answer.body, 1)], answer.url)


def _note_workers(scan: Scan, document: Mapping[str, object], url: str) -> None:
    for place, found in kvfence_server.workers_of(document):
        book = scan.book(place)
        book.saw(kvfence_server.ENGINE)
        for item in found:
            book.add(item, origin_of(url, {"workers": document["workers"]}, item))


def _note_key(scan: Scan, answer: Answer, asked_with_token: bool) -> None:
    if urlsplit(answer.url).path != "/v1/models" or asked_with_token or answer.status not in (200, 401, 403):
        return
    origin = Origin(answer.url, None, f"HTTP {answer.status} without a key", None, "/v1/models")
    scan.shared().add(Found("api_key_set", answer.status != 200), origin)


def _json(body: bytes) -> object:
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
