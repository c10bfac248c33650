"""A Prometheus server: pool, context and cache configuration of every instance it scrapes, by one instant query.

Not for: alert rules (``kvfence audit alerts``).
"""

import json
from urllib.parse import quote

from kvfence.evidence.answers import read_vector
from kvfence.evidence.facts import SourceFacts
from kvfence.evidence.fetch import checked, get, shown
from kvfence.evidence.metrics import NAMES

QUERY = '{__name__=~"' + "|".join([*NAMES, *(f"{name}_total" for name in NAMES if name.count("_") > 2)]) + '"}'


def read_prometheus(url: str, token_variable: str | None = None) -> list[SourceFacts]:
    """The facts of each instance, engine and rank that a Prometheus server knows.

    Raises:
        EvidenceError: the URL holds credentials, or the token's variable is not set.
    """
    given = checked(url).rstrip("/")
    answer, base = get(f"{given}/api/v1/query?query={quote(QUERY)}", token_variable), shown(given)
    if answer.status != 200:
        reason = answer.problem or f"HTTP {answer.status}"
        return [SourceFacts(base, "prometheus", problems=(f"{base}: {reason}",))]
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return [SourceFacts(base, "prometheus", problems=(f"{base}: the answer is not JSON",))]
    data = document.get("data") if isinstance(document, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    found = read_vector(base, result)
    return found or [SourceFacts(base, "prometheus", problems=(f"{base}: no SGLang or vLLM metric there",))]
