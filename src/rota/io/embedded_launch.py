"""Turns itself into a PostgreSQL program that ends when the program that asked for it ends.

A script for a fresh interpreter (`python -I -S embedded_launch.py …`), not a module to import for its functions: it
uses the standard library alone, so that it starts in milliseconds, and it does what must be done between fork and exec,
where a program that may have threads must not run Python of its own.

Invariant: once PostgreSQL runs, the kernel sends it SIGINT (a fast, clean shutdown) when the calling program is gone,
whatever ended it. Where the kernel has no such call, `watch` runs beside the server and does the same.

    embedded_launch.py exec PARENT_PID USER PROGRAM ARGS…          USER is `same`, `namespace` or UID:GID
    embedded_launch.py exec-watched PARENT_PID USER PROGRAM ARGS…  the same, without the request to the kernel
    embedded_launch.py watch PARENT_PID SERVER_PID PIDFILE         what goes with `exec-watched`
    embedded_launch.py try-namespace                               ends with 0 where `namespace` works
"""

import ctypes
import os
import signal
import sys
import time

NOBODY_ID = 65534  # the user and group that own nothing, by kernel convention
CLONE_NEWUSER = 0x10000000  # linux/sched.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h
WATCH_EVERY_S = 0.25  # how long a server may outlive its program where we must look ourselves
NAMING_S_MAX = 5.0  # a server that has not written its pid file by then never will


def die_with(parent_pid: int, *, ask_kernel: bool) -> None:
    """Asks the kernel for SIGINT when the parent's thread that forked this process ends.

    Must come after every change of user: the kernel forgets the request at such a change.
    """
    # A shell starts background programs with SIGINT ignored, and exec keeps that: until PostgreSQL has its own handler
    # the signal must still end the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if ask_kernel and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0) != 0:
        raise OSError("the kernel refuses PR_SET_PDEATHSIG")
    if os.getppid() != parent_pid:  # it ended before the request was made
        sys.exit(1)


def enter_namespace() -> None:
    """Makes root look like nobody to this process; files stay root's, and no capability is left after exec.

    The same as `unshare --user --map-user=65534 --map-group=65534`, which older util-linux and busybox do not have.
    """
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no user namespace: {os.strerror(code)}")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{NOBODY_ID} {uid} 1")
    write("/proc/self/gid_map", f"{NOBODY_ID} {gid} 1")


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def become(user: str) -> None:
    """Takes the user that the server runs as."""
    if user == "namespace":
        enter_namespace()
    elif user != "same":
        uid, gid = (int(part) for part in user.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def execute(parent_pid: int, user: str, argv: list[str], *, ask_kernel: bool) -> None:
    """Becomes the program; returns only by an exception."""
    become(user)
    die_with(parent_pid, ask_kernel=ask_kernel)
    os.execv(argv[0], argv)  # noqa: S606 - no shell is the point


def watch(parent_pid: int, server_pid: int, pidfile: str) -> None:
    """Waits for the parent's end, then stops the server, if the pid still is the server's."""
    while os.getppid() == parent_pid:
        time.sleep(WATCH_EVERY_S)
    give_up_at = time.monotonic() + NAMING_S_MAX
    while time.monotonic() < give_up_at:
        try:
            with open(pidfile, encoding="utf-8", errors="replace") as file:
                named = file.readline().strip()
        except FileNotFoundError:
            named = ""
        if named == str(server_pid):
            os.kill(server_pid, signal.SIGINT)
            return
        time.sleep(WATCH_EVERY_S)


def main(args: list[str]) -> int:
    """Runs one of the forms above.

    Returns:
        The exit code: 0, or 126 when the program could not be run, with one line on stderr.
    """
    try:
        match args:
            case ["exec" | "exec-watched" as form, parent_pid, user, *argv]:
                execute(int(parent_pid), user, argv, ask_kernel=form == "exec")
            case ["try-namespace"]:
                enter_namespace()
            case ["watch", parent_pid, server_pid, pidfile]:
                watch(int(parent_pid), int(server_pid), pidfile)
            case _:
                sys.stderr.write(f"{__doc__}\n")
                return 2
    except OSError as error:
        sys.stderr.write(f"cannot run {args[3] if len(args) > 3 else args[0]}: {error}\n")
        return 126  # what a shell answers for a program that cannot be run
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
