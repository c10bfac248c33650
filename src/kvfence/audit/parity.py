"""Checks that prefill and decode agree on one value: the bytes of a page mean something only under one layout."""

from collections.abc import Callable
from typing import TypeVar

from kvfence.audit.deployment import Engine
from kvfence.audit.judge import each_pair, failed, passed, undecided
from kvfence.audit.rule import Check, Fix, Outcome
from kvfence.evidence.facts import Known, Unknown

V = TypeVar("V", int, str)


def same(
    noun: str, field: str, read: Callable[[Engine], Known[V] | Unknown], setting: Callable[[Engine, V], str]
) -> Check:
    """Make a check that both halves of a pair have one value; ``setting`` gives the flag that makes decode follow."""

    def judge(prefill: Engine, decode: Engine) -> Outcome:
        return agreement(noun, (read(prefill), read(decode)), lambda value: _follow(decode, field, value, setting))

    return each_pair(judge)


def agreement(noun: str, facts: tuple[Known[V] | Unknown, Known[V] | Unknown], fix: Callable[[V], Fix]) -> Outcome:
    """Compare one value of prefill and decode, in this order."""
    ours, theirs = facts
    if isinstance(ours, Unknown):
        return undecided(f"the {noun} of prefill is not known: {ours.reason}", theirs)
    if isinstance(theirs, Unknown):
        return undecided(f"the {noun} of decode is not known: {theirs.reason}", ours)
    if ours.value == theirs.value:
        return passed(f"{noun}: {ours.value} on both", ours, theirs)
    text = f"{noun}: {ours.value} on prefill, {theirs.value} on decode"
    return failed(text, ours, theirs, fixes=(fix(ours.value),))


def _follow(decode: Engine, field: str, value: V, setting: Callable[[Engine, V], str]) -> Fix:
    flag = setting(decode, value)
    how = f"`{flag}`" if flag else str(value)
    return Fix(f"Start decode with {how}, as prefill", flag, roles=("decode",), changes={field: value})
