"""Credentials are taken out of a text before any of it is quoted, kept or shown.

Not for: prompts (no prompt text is ever quoted: only lines of known forms are).
"""

import re

MASK = "[redacted]"

_WORDS = (
    r"(?:api[-_]?key|apikey|admin[-_]?key|access[-_]?key(?:[-_]?id)?|secret(?:[-_]?(?:access)?[-_]?key)?|private[-_]?key|"
    r"auth[-_]?token|token[-_]?secret|password|passwd|passphrase|hf[-_]?token|credentials?|"
    r"(?:access|auth|bearer|refresh|session|hub|hugging[-_]?face(?:[-_]hub)?|github|gitlab|ngc|wandb|openai|aws)"
    r"[-_]?(?:token|key|secret)|(?<=[?&])token|(?<=--)token)"
)
_VALUE = (
    r"(?:\\?'[^'\\]{0,4000}\\?'|\\?\"[^\"\\]{0,4000}\\?\"|'(?:[^'\\]|\\.){0,4000}'|\"(?:[^\"\\]|\\.){0,4000}\"|"
    r"[^\s,;&)}\]'\"]{1,4000})"
)
_NONE = r"(?!\s*(?:None|null|False|True|false|true|''|\"\")(?:[\s,)}\]]|$))"
_PAIR = re.compile(rf"(?i)(?P<key>{_WORDS}\\?['\"]?\s{{0,3}}(?:[=:]|\s)\s{{0,3}}\\?){_NONE}(?P<value>{_VALUE})")
_ENV_TOKEN = re.compile(
    r"(?P<key>(?<![a-z])(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\\?['\"]?\s{0,3}[=:]\s{0,3}\\?)"
    rf"{_NONE}(?P<value>{_VALUE})"
)
_HEADER = re.compile(
    r"(?i)(?P<key>(?:proxy-)?authorization\\?['\"]?\s{0,3}[:=]\s{0,3}\\?['\"]?)(?:(?:bearer|basic|token|digest)\s+)?[^\s'\",]{1,4000}"
)
_BEARER = re.compile(r"(?i)\b(?P<key>bearer\s+)[\w.~+/=-]{6,4000}")
_URL = re.compile(r"(?P<key>[a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^/\s:@'\"]{0,400}(?::[^/\s@'\"]{0,400})?@")
_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{12,}|hf_[A-Za-z0-9]{12,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})"
)
_SIGNS = (
    "key", "secret", "passw", "passphrase", "credential", "authorization", "bearer", "_token", "-token",
    "token=", "token:", "token'", 'token"', "token\\", "@", "sk-", "hf_", "gh", "glpat", "akia", "xox", "nvapi", "eyj",
)  # fmt: skip
"""One of these stands in every text that could hold a credential: without any, the patterns need not be tried."""


def redact(text: str) -> str:
    """The text without values of credentials, in any of the forms commands, environments, URLs and headers have."""
    lowered = text.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return text
    text = _URL.sub(rf"\g<key>{MASK}@", text)
    text = _HEADER.sub(rf"\g<key>{MASK}", text)
    text = _BEARER.sub(rf"\g<key>{MASK}", text)
    text = _PAIR.sub(_mask, text)
    text = _ENV_TOKEN.sub(_mask, text)
    return _KNOWN.sub(MASK, text)


def _mask(match: re.Match[str]) -> str:
    value = match["value"]
    if value.startswith("[redacted"):
        return match[0]
    return f"{match['key']}{MASK}"
