"""The argv gate: what a command line for ffmpeg or ffprobe is turned into, or why it is refused. Pure."""

from rota.runners.argv.compiler import Compiled, compile_argv
from rota.runners.argv.files import Entry, Listing, SessionFiles

__all__ = ["Compiled", "Entry", "Listing", "SessionFiles", "compile_argv"]
