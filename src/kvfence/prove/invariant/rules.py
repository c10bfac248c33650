"""All conjuncts and actions, and which conjuncts are claimed under a set of guards."""

from kvfence.protocol.guards import ASKED, Rules
from kvfence.prove.invariant.action import Action
from kvfence.prove.invariant.at_decode import AT_DECODE
from kvfence.prove.invariant.at_prefill import AT_PREFILL
from kvfence.prove.invariant.conjunct import Conjunct
from kvfence.prove.invariant.decode_actions import DECODE_ACTIONS
from kvfence.prove.invariant.prefill_actions import PREFILL_ACTIONS
from kvfence.prove.invariant.world_actions import WORLD_ACTIONS

CONJUNCTS: tuple[Conjunct, ...] = (*AT_DECODE, *AT_PREFILL)
ACTIONS: tuple[Action, ...] = (*DECODE_ACTIONS, *PREFILL_ACTIONS, *WORLD_ACTIONS)


def conjuncts_of(rules: Rules) -> tuple[Conjunct, ...]:
    """Give the conjuncts that are claimed with these guards."""
    return tuple(c for c in CONJUNCTS if not any(_absent(rules, name) for name in c.needs))


def _absent(rules: Rules, name: str) -> bool:
    places = [asked for asked in ASKED if asked.split("@")[0] == name]
    return all(asked in rules.absent for asked in places)
