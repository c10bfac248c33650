"""Is it inductive? Every conjunct at the start, and after every action that begins where all of them hold.

A question is ``start => conjunct`` or ``all conjuncts and action => conjunct afterwards``; a *no* comes with a state.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import product

import z3
from msgspec import Struct

from kvfence.protocol.guards import Rules
from kvfence.prove.invariant.action import Action, Guards
from kvfence.prove.invariant.conjunct import Conjunct
from kvfence.prove.invariant.fields import FREE, RECEIPT, S_FREE, SESSION, UNPOSTED, WORDS
from kvfence.prove.invariant.logic import Field, Sort, State, Term
from kvfence.prove.invariant.rules import ACTIONS, CONJUNCTS, conjuncts_of
from kvfence.prove.invariant.terms import Terms, constants, reachable, symbolic

TIMEOUT_MS = 20_000
START = "start"


class Failure(Struct, frozen=True):
    """A conjunct that an action does not keep, and a state in which it happens.

    ``proved``: False here; ``unknown``: Z3 gave up instead. ``model``: what the state and the action are, by name.
    """

    action: str
    conjunct: str
    safety: bool
    unknown: bool
    model: tuple[tuple[str, str], ...]


class Proof(Struct, frozen=True):
    """What came of the questions.

    ``actions``: those that the absent guards can change, all where none is absent. Units: ``cpu_s`` seconds of
    processor time.
    """

    absent: tuple[str, ...]
    conjuncts: int
    actions: int
    obligations: int
    cpu_s: float
    failures: tuple[Failure, ...]

    @property
    def holds(self) -> bool:
        """Is the invariant inductive?"""
        return not self.failures


class _Template:
    """A conjunct of the state before, to be said of any terms. ``fields``: what it speaks of."""

    def __init__(self, conjunct: Conjunct, state: State) -> None:
        self.conjunct = conjunct
        spoken = _Overheard(state)
        self._unknowns = constants(conjunct.sorts, f"{conjunct.name}.")
        self._formula = z3.And(True, conjunct.of(Terms({}), spoken, *self._unknowns))
        self.fields = frozenset(spoken.heard)
        self._said: dict[tuple[int, ...], Term] = {}
        self._kept: list[Term] = []

    def said_of(self, args: Sequence[Term]) -> Term:
        """Say it of these; the same is said to every action that is about the same terms."""
        key = tuple(term.get_id() for term in args)
        if key not in self._said:
            pairs = zip(self._unknowns, args, strict=True)
            self._said[key] = z3.substitute(self._formula, *pairs) if args else self._formula
            self._kept.extend(args)  # an id holds only while its term is there
        return self._said[key]


class _Overheard(State):
    """A state that notes which fields are asked for."""

    __slots__ = ("heard",)

    def __init__(self, state: State) -> None:
        super().__init__(state.fields)
        self.heard: set[str] = set()

    def __getattr__(self, name: str) -> Field:
        self.heard.add(name)
        return super().__getattr__(name)


class _Stage:
    """All conjuncts, said of an action's parameters, of what is doubted, and of what these lead to."""

    def __init__(
        self, state: State, kinds: Sequence[str], sorts: Sequence[Sort], templates: Sequence[_Template]
    ) -> None:
        self.parameters = constants(kinds, "the")
        self.doubted = constants(sorts, "any")
        acting = _by_sort(self.parameters, kinds)
        base = _by_sort([*self.parameters, *self.doubted], [*kinds, *sorts])
        at_hand = reachable(state, base, acting["attempt"])
        self.terms = Terms(at_hand)
        self.solver = z3.SolverFor("QF_UFLIA")
        self.solver.set("timeout", TIMEOUT_MS)
        self.solver.add(_fixed(self.terms, state))
        for template in templates:
            said = (template.said_of(args) for args in product(*(at_hand[sort] for sort in template.conjunct.sorts)))
            self.solver.add(*said)


class Induction:
    """The questions. One object answers for many sets of guards, and asks again only what they change."""

    def __init__(self) -> None:
        self.state = symbolic()
        self._templates = {conjunct.name: _Template(conjunct, self.state) for conjunct in CONJUNCTS}
        self._stages: dict[tuple[object, ...], _Stage] = {}
        self._proved: dict[str, frozenset[str]] = {}
        self._claimed: tuple[_Template, ...] = ()

    def prove(self, rules: Rules) -> Proof:
        """Ask everything that these guards can change the answer of; everything, the first time."""
        begun = time.process_time()
        conjuncts = conjuncts_of(rules)
        self._claimed = tuple(self._templates[conjunct.name] for conjunct in conjuncts)
        whole = len(conjuncts) < len(CONJUNCTS) or not self._proved
        failures = [*self._at_start()] if whole else []
        asked = [action for action in ACTIONS if whole or not rules.absent.isdisjoint(self._proved[action.name])]
        for action in asked:
            failures += self._kept_by(action, rules)
        spent = time.process_time() - begun
        obligations = len(conjuncts) * (len(asked) + whole)
        return Proof(tuple(sorted(rules.absent)), len(conjuncts), len(asked), obligations, spent, tuple(failures))

    def _groups(self) -> dict[tuple[Sort, ...], list[_Template]]:
        """Conjuncts about the same sorts are asked together."""
        groups: dict[tuple[Sort, ...], list[_Template]] = {}
        for template in self._claimed:
            groups.setdefault(template.conjunct.sorts, []).append(template)
        return groups

    def _at_start(self) -> Iterator[Failure]:
        for sorts, templates in self._groups().items():
            stage = _Stage(self.state, (), sorts, [])
            stage.solver.add(begins(stage.terms, self.state))
            for template in templates:
                claim = template.conjunct.of(stage.terms, self.state, *stage.doubted)
                yield from self._ask(stage, claim, START, template.conjunct)

    def _kept_by(self, action: Action, rules: Rules) -> Iterator[Failure]:
        guards = Guards(rules, set())
        for sorts, templates in self._groups().items():
            stage = self._stage(action.parameters, sorts)
            effect = action.does(stage.terms, self.state, guards, *stage.parameters)
            changed = {name for name, field in effect.after.fields.items() if field is not self.state.fields[name]}
            touched = [template for template in templates if not changed.isdisjoint(template.fields)]
            if effect.may is False or not touched:
                continue  # it cannot happen, or nothing that they speak of has changed
            stage.solver.push()
            stage.solver.add(z3.And(True, effect.may))
            for template in touched:
                after = template.conjunct.of(stage.terms, effect.after, *stage.doubted)
                yield from self._ask(stage, after, action.name, template.conjunct)
            stage.solver.pop()
        self._proved.setdefault(action.name, frozenset(guards.asked))

    def _stage(self, kinds: tuple[str, ...], sorts: tuple[Sort, ...]) -> _Stage:
        key = (kinds, sorts, self._claimed)
        if key not in self._stages:
            self._stages[key] = _Stage(self.state, kinds, sorts, self._claimed)
        return self._stages[key]

    def _ask(self, stage: _Stage, claim: Term, action: str, conjunct: Conjunct) -> Iterator[Failure]:
        """Look for a state in which the claim does not hold."""
        if claim is True:
            return
        stage.solver.push()
        stage.solver.add(z3.Not(claim) if z3.is_expr(claim) else z3.BoolVal(not claim))
        answer = stage.solver.check()
        if answer != z3.unsat:
            known = answer == z3.sat
            terms = [*stage.parameters, *stage.doubted]
            model = describe(stage.solver.model(), self.state, terms) if known else ()
            yield Failure(action, conjunct.name, conjunct.safety, not known, model)
        stage.solver.pop()


def _by_sort(terms: Sequence[Term], kinds: Sequence[str]) -> dict[str, list[Term]]:
    return {sort: [term for term, kind in zip(terms, kinds, strict=True) if kind == sort] for sort in _FINITE}


_FINITE = ("attempt", "index", "page", "source", "life")


def _fixed(o: Terms, s: State) -> Term:
    """What is true of the things that never change."""
    sizes = o.each(("attempt",), lambda a: o.all(s.size(a) >= 1, s.request(a) != s.nobody()))
    return o.all(sizes, s.fence() >= RECEIPT, s.fence() <= SESSION, s.batch_max() >= 1)


def begins(o: Terms, s: State) -> Term:
    """How it begins: nobody has asked for anything, and pages may hold anything. A start is a ``restart`` from here."""
    nothing = ("decode", "num_table", "serial", "prefill", "num_source", "num_send", "num_sealed", "num_posted")
    zero: Field = lambda a: o.all(*(s.fields[name](a) == 0 for name in (*nothing, "num_landed", "session_of")))
    flags = ("passing", "over", "granted", "holds", "computing", "batch", "unknown", "owes", "forgotten", "sent")
    off: Field = lambda a: o.all(*(o.no(s.fields[name](a)) for name in (*flags, "drained")), s.quiet(a))
    attempts = o.each(("attempt",), lambda a: o.all(zero(a), off(a), s.worker(a) == s.placed(a)))
    posted = o.each(("attempt", "index"), lambda a, i: s.write(a, i) == UNPOSTED)
    kinds: Field = lambda p: o.all(s.page(p) == FREE, o.no(s.former(p)), o.no(s.noticed(p)))
    bare: Field = lambda p: o.all(s.head_kind(p) == 0, s.stray(p) == 0, kinds(p))
    sources = o.each(("source",), lambda t: o.all(s.source_state(t) == S_FREE, s.source_serial(t) == 0))
    lives = o.each(("life",), lambda life: s.next_serial(life) == 1)
    told = o.all(o.no(s.leaked()), s.started(), s.session() == 0)
    return o.all(attempts, posted, o.each(("page",), bare), sources, lives, told)


def describe(model: z3.ModelRef, s: State, terms: Sequence[Term]) -> tuple[tuple[str, str], ...]:
    """Give what a counterexample says of the things an action and a conjunct are about."""
    said = [("fence", _word("fence", model.eval(s.fence(), model_completion=True)))]
    for term in terms:
        if not z3.is_expr(term):
            continue
        said.append((str(term), _word("", model.eval(term, model_completion=True))))
        said += [(f"{name}({term})", value) for name, value in _facts(model, s, term)]
    return tuple(said)


_OF_SORT = {
    "attempt": ("decode", "prefill", "granted", "num_table", "size", "num_posted", "batch", "unknown", "forgotten"),
    "page": ("page", "stray", "noticed", "foul", "drains", "former"),
    "source": ("source_state", "source_serial", "slack"),
    "life": ("dead", "writer"),
}


def _facts(model: z3.ModelRef, s: State, term: Term) -> Iterator[tuple[str, str]]:
    for name in _OF_SORT.get(str(term.sort()), ()):
        yield name, _word(name, model.eval(s.fields[name](term), model_completion=True))


def _word(name: str, value: Term) -> str:
    words = WORDS.get(name, ())
    number = int(str(value)) if words else 0
    return words[number] if 0 <= number < len(words) else str(value).replace("!val!", "-")
