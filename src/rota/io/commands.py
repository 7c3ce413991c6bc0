"""Small commands run whole: all output in memory, for `app.run` and `ctx.run`.

It stands on `Commands.exec` alone, so whoever can run commands can run them whole.
"""

from rota.commands import OUTPUT_BYTES_MAX, Call, Commands, Completed
from rota.errors import ExecFailed


async def run_whole(commands: Commands, call: Call, *, output_bytes_max: int = OUTPUT_BYTES_MAX) -> Completed:
    """Runs a command and takes all its output into memory.

    Args:
        commands: who runs it.
        call: what to run.
        output_bytes_max: with more output the command is cancelled.

    Raises: ExecFailed, ExecLost, ExecRefused, ExecStopped, NoSlot.
    """
    output = bytearray()
    async with commands.exec(call) as run:
        async for chunk in run.stdout:
            output += chunk
            if len(output) > output_bytes_max:
                run.cancel()
                break
    if len(output) > output_bytes_max:
        raise ExecFailed(
            f"{call.service} wrote more than {output_bytes_max:,} bytes, and `run` keeps all of it in memory. "
            "Use `exec` and take its output as it comes.",
            receipt=run.receipt,
        )
    return Completed(bytes(output), run.receipt)
