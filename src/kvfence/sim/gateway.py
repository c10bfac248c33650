"""What a gateway does in the simulation: submits, counts what is delivered, keeps how each request ended."""

from collections.abc import Callable

from kvfence.core.ids import Incarnation, RequestId
from kvfence.driver.loop import Stepper
from kvfence.protocol.commands import Command, Deliver, Finish, Send
from kvfence.protocol.events import ClientGone, Event, Submit
from kvfence.protocol.gateway import GatewayNode
from kvfence.protocol.messages import EndReason, Offer
from kvfence.sim.process import Process, SendTo, Surroundings
from kvfence.sim.workload import SimRequest

DEADLINE_NS = 600 * 10**9


class Gateway(Process[GatewayNode]):
    """The gateway's process. ``finish`` hears how each request ended."""

    role = "gateway"

    def __init__(
        self,
        around: Surroundings,
        node: GatewayNode,
        send: SendTo,
        stepper: Stepper,
        finish: Callable[[RequestId, EndReason], None],
    ) -> None:
        super().__init__(around, node, send, stepper)
        self.open: dict[RequestId, SimRequest] = {}
        self.delivered: dict[RequestId, int] = {}
        self.leaving: list[RequestId] = []
        self._finish = finish

    def submit(self, request: SimRequest, prefill: Incarnation, decode: Incarnation) -> None:
        """Take a client's request."""
        self.open[request.id] = request
        salt = f"salt of {request.tenant}" if self.around.setup.prefix_reuse else ""
        event = Submit(request.id, request.num_tokens, request.max_tokens, prefill, decode, DEADLINE_NS, salt)
        self.loop.feed(event)

    def leave(self, request: RequestId) -> None:
        """The client disconnects."""
        self.loop.feed(ClientGone(request))

    def execute(self, command: Command) -> list[Event] | None:
        """Note the request behind an attempt before its offer leaves."""
        if isinstance(command, Send) and isinstance(command.message, Offer):
            handoff = self.loop.node.handoffs[command.message.attempt]
            self.around.asked[handoff.attempt] = self.open[handoff.request]
        super().execute(command)
        return None

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
