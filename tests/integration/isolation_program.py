"""Handlers for child processes; a child imports them from here by name."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import rota


@dataclass
class Order:
    """What a handler should do."""

    do: str
    path: str = ""


def obey(ctx: rota.Context, order: Order) -> object:
    match order.do:
        case "answer":
            return {"pid": os.getpid(), "tries": ctx.job.tries}
        case "raise":
            raise ValueError("as it was told")
        case "snooze":
            return rota.Snooze(600, reason="later")
        case "fail":
            return rota.Fail("for good")
        case "not-json":
            return object()
        case "die":
            os._exit(9)
        case "wait-until-stopped":
            with open(order.path, "w") as file:
                file.write("begun")
            while not ctx.should_stop:
                time.sleep(0.01)
            return {"stopped": True}
        case "progress":
            for step in range(30):
                time.sleep(0.1)
                ctx.progress(step / 30)
            return "long"
        case "stubborn":
            # A grandchild in a session of its own, deaf to SIGTERM, that writes its process id.
            code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            code += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", code, order.path], start_new_session=True)
            while True:
                time.sleep(1)
    return None
