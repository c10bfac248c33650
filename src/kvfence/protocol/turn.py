"""One step in the making: the commands and decisions it gathers. Lives only inside ``step``."""

from kvfence.core.ids import AttemptId
from kvfence.protocol.commands import Command
from kvfence.protocol.guards import Decision, Place, Rules


class Turn:
    """Gathers what one event leads to."""

    def __init__(self, rules: Rules, place: Place) -> None:
        self.rules = rules
        self.place = place
        self.commands: list[Command] = []
        self.decisions: list[Decision] = []

    def ask(self, guard: str, attempt: AttemptId | None, holds: bool) -> bool:
        """Record a guard's answer; False only where it does not hold and is enforced."""
        enforced = self.rules.enforces(guard, self.place)
        observed = self.rules.observes(guard, self.place)
        self.decisions.append(Decision(guard, self.place, attempt, holds, enforced, observed))
        return holds or not enforced

    def do(self, *commands: Command) -> None:
        """Add commands, in order."""
        self.commands += commands
