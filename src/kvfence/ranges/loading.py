"""The model of a practice server's worker: the practice model without torch, or a checkpoint as anywhere."""

from typing import Any

from kvfence.core.layout import KVLayout
from kvfence.kv.storage import PoolBuffer
from kvfence.ranges.orders import read_orders
from kvfence.ranges.practice import NAME, Pace, PracticeExecutor, slot_views
from kvfence.runtime.lifeline import Begin
from kvfence.runtime.process import Model, load_model


def load(begin: Begin) -> Model:
    """Load what the orders name."""
    orders = read_orders()
    if not orders.practice:
        return load_model(begin)
    pace = Pace(orders.prefill_rate, orders.decode_rate)
    return Model(PracticeExecutor(begin.settings.pool.page_size, orders.context_tokens, pace), NAME)


def practice_views(pool: PoolBuffer, layout: KVLayout) -> list[Any] | None:
    """Give the practice model's views; None for a checkpoint, whose workers make their own."""
    return list(slot_views(pool, layout)) if read_orders().practice else None
