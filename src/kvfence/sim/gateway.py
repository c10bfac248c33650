"""What a gateway does in the simulation: submits, counts what is delivered, keeps how each request ended."""

from collections.abc import Callable
from typing import NamedTuple

from kvfence.core.ids import RequestId
from kvfence.driver.loop import Stepper
from kvfence.protocol.commands import Command, Deliver, Finish, Resubmit, Send
from kvfence.protocol.events import ClientGone, Event, Submit
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.messages import EndReason, Offer
from kvfence.protocol.routing import Placement
from kvfence.sim.process import Process, SendTo, Surroundings
from kvfence.sim.workload import SimRequest

DEADLINE_NS = 600 * 10**9


class Outside(NamedTuple):
    """Who hears how each request ended, and who says where an attempt goes."""

    finish: Callable[[RequestId, EndReason], None]
    place: Callable[[], Placement]


class Gateway(Process[GatewayNode]):
    """The gateway's process."""

    role = "gateway"

    def __init__(
        self,
        around: Surroundings,
        node: GatewayNode,
        send: SendTo,
        stepper: Stepper,
        outside: Outside,
    ) -> None:
        super().__init__(around, node, send, stepper)
        self.open: dict[RequestId, SimRequest] = {}
        self.delivered: dict[RequestId, int] = {}
        self.leaving: list[RequestId] = []
        self._finish, self._place = outside

    def submit(self, request: SimRequest) -> None:
        """Take a client's request."""
        self.open[request.id] = request
        on, salt = self._place(), f"salt of {request.tenant}" if self.around.setup.prefix_reuse else ""
        event = Submit(request.id, request.num_tokens, request.max_tokens, on.prefill, on.decode, DEADLINE_NS, salt)
        self.loop.feed(event)

    def leave(self, request: RequestId) -> None:
        """The client disconnects."""
        self.loop.feed(ClientGone(request))

    def execute(self, command: Command) -> list[Event] | None:
        """Note the request behind an attempt before its offer leaves; place what goes on anew."""
        if isinstance(command, Resubmit):
            return [self._again(command)]
        if isinstance(command, Send) and isinstance(command.message, Offer):
            handoff = self.loop.node.handoffs[command.message.attempt]
            self.around.asked[handoff.attempt] = self.open[handoff.request]
        super().execute(command)
        return None

    def _again(self, command: Resubmit) -> Submit:
        on = self._place()
        return Submit(
            request=command.request,
            num_tokens=command.num_tokens,
            max_tokens=command.max_tokens,
            prefill=on.prefill,
            decode=on.decode,
            remaining_ns=command.remaining_ns,
            salt=command.salt,
            timer=command.timer,
        )

    def carry_out(self, command: Command) -> None:
        """Deliver or finish."""
        match command:
            case Deliver(request=request, num_tokens=num_tokens):
                self.delivered[request] = self.delivered.get(request, 0) + num_tokens
                if self.open[request].leaves_after == self.delivered[request]:
                    self.leaving.append(request)
            case Finish(request=request, reason=reason):
                self.open.pop(request, None)
                self._finish(request, reason)
