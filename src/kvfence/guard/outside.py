"""The guard seen from outside: is it on, on which roles, with one key and one version, and does it enforce?

Asks each URL for its metrics, and nothing else. What does not answer, or shows no guard, is not taken for guarded.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from kvfence.evidence.fetch import Answer, get

ACTIVE = "kvfence:guard_active"
ENFORCE = "enforce"
BOTH = "both"
"""The role of a worker that prefills and decodes, as vLLM's ``kv_both`` does."""

Get = Callable[[str], Answer]


class State(StrEnum):
    """What a URL shows. UNKNOWN: it was not read, so nothing is known."""

    ENFORCING = "enforcing"
    OBSERVING = "observing"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Seen(Struct, frozen=True):
    """One URL. ``reason``: why it is not known, in words."""

    url: str
    state: State
    role: str = ""
    key_id: str = ""
    version: str = ""
    reason: str = ""


class Checked(Struct, frozen=True):
    """All URLs, and what is wrong between them; both empty of problems where the pair is guarded."""

    seen: tuple[Seen, ...]
    problems: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """Was every URL read?"""
        return all(each.state is not State.UNKNOWN for each in self.seen)


def check(urls: Sequence[str], fetch: Get = get) -> Checked:
    """Look at each URL and compare them."""
    seen = tuple(one for url in urls for one in _look(url, fetch))
    return Checked(seen, tuple(_problems(seen)))


def _look(url: str, fetch: Get) -> list[Seen]:
    answer = fetch(f"{url.rstrip('/')}/metrics")
    if answer.status != 200 or answer.problem:
        return [Seen(url, State.UNKNOWN, reason=answer.problem or f"HTTP {answer.status} for /metrics")]
    try:
        families = list(text_string_to_metric_families(answer.body.decode("utf-8", "replace")))
    except ValueError:
        return [Seen(url, State.UNKNOWN, reason="/metrics is not in Prometheus's format")]
    found: list[Seen] = []
    for family in families:
        for sample in family.samples:
            if sample.name == ACTIVE and sample.value:
                labels = sample.labels
                state = State.ENFORCING if labels.get("mode") == ENFORCE else State.OBSERVING
                found.append(
                    Seen(url, state, labels.get("role", ""), labels.get("key_id", ""), labels.get("version", ""))
                )
    return list(dict.fromkeys(found)) or [Seen(url, State.ABSENT, reason="no guard there")]


def _problems(seen: Sequence[Seen]) -> list[str]:
    problems = [f"{one.url}: {one.reason}" for one in seen if one.reason]
    problems += [f"{one.url}: observes, and refuses nothing" for one in seen if one.state is State.OBSERVING]
    problems += [f"{one.url}: runs without a key" for one in seen if one.key_id == "insecure"]
    on = [one for one in seen if one.state in (State.ENFORCING, State.OBSERVING)]
    for name in ("key_id", "version"):
        values = sorted({getattr(one, name) for one in on})
        if len(values) > 1:
            problems.append(f"the {name.replace('_', ' ')}s differ: {', '.join(values)}")
    roles = {one.role for one in on}
    missing = set() if BOTH in roles else {"prefill", "decode"} - roles
    if on and missing:
        problems.append(f"no {' and no '.join(sorted(missing))} worker among these")
    return problems
