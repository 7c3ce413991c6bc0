"""Handlers for child processes that say something, and that stop or do not."""

import threading
import time
from dataclasses import dataclass

import rota
from rota.queue.history import LOG_LINES_MAX


@dataclass
class Order:
    """What the handler should do."""

    do: str


def talk(ctx: rota.Context, order: Order) -> None:
    match order.do:
        case "say":
            ctx.log.info("from a child", n=1)
            thread = threading.Thread(target=lambda: ctx.log.info("from its thread"))
            thread.start()
            thread.join()
        case "chat":
            for number in range(LOG_LINES_MAX + 50):
                ctx.log.info("line", number=number)
        case "listen":
            ctx.log.info("began")
            while not ctx.should_stop:
                time.sleep(0.01)
        case "deaf":
            ctx.log.info("began")
            while True:
                time.sleep(1)
