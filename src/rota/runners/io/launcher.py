"""The program that becomes ffmpeg: first it gives up what ffmpeg does not need. Run as a script by a bare interpreter.

It imports nothing of Rota and nothing that is slow. Its first argument is a JSON object, the rest is the command. In
its order: limits of the process, no new privileges, a network namespace without a network, Landlock (only these files
may be read, written or executed, no TCP), seccomp (no sockets, no other processes). Where the command is bubblewrap,
which needs both itself, it is handed the filter and applies it last. What was asked for and cannot be had ends it: a
command never runs with less around it than the runner has told its gateway.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys

FAILED = 125
"""The exit status when the command was not started."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same number on every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE, _MAKE, _RENAME = 1 << 5, 1 << 8, 1 << 13
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_RIGHTS = (1 << 16) - 1
# socket, socketpair, ptrace, io_uring_setup, process_vm_readv, process_vm_writev, bpf, userfaultfd, keyctl, unshare,
# setns, mount; fork and vfork where there are any. Then clone and clone3.
_FORBIDDEN = {
    "x86_64": (0xC000003E, (41, 53, 101, 425, 310, 311, 321, 323, 250, 272, 308, 165, 57, 58), 56, 435),
    "aarch64": (0xC00000B7, (198, 199, 117, 425, 270, 271, 280, 282, 219, 97, 268, 40), 220, 435),
}
_CLONE_THREAD = 0x00010000
_ENOSYS = 38
_LIMITS = {
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "file": resource.RLIMIT_FSIZE,
    "files": resource.RLIMIT_NOFILE,
    "memory": resource.RLIMIT_AS,
}

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Gives up, then becomes the command."""
    asked, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        for name, value in asked["limits"].items():
            hard = resource.getrlimit(_LIMITS[name])[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(_LIMITS[name], (most, most))
        for number in (signal.SIGXFSZ, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)  # what Python ignores: the limit of a file has to end a command
        _first_to_go()
        _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if asked.get("netns"):
            _leave_network()
        if asked.get("landlock"):
            _landlock(asked["landlock"])
        if asked.get("seccomp") == "inside":
            command[1:1] = ["--seccomp", str(_handed(_filter()))]
        elif asked.get("seccomp"):
            _seccomp()
        os.execve(command[0], command, asked["env"])  # noqa: S606 - no shell is the point
    except (OSError, ValueError, KeyError) as error:
        print(f"the command cannot be started: {error}", file=sys.stderr)
        sys.exit(FAILED)


def landlock_abi() -> int:
    """The version of Landlock that this system has; 0: none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1)))


def _call(function: object, *args: object) -> int:
    result = int(function(*args))  # type: ignore[operator]
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _leave_network() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _call(_libc.unshare, _CLONE_NEWNET)
        return
    _call(_libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _landlock(asked: "dict[str, list[str]]") -> None:
    abi = landlock_abi()
    if abi == 0:
        raise OSError("Landlock is not there")
    rights = _RIGHTS_OF_ABI.get(abi, _ALL_RIGHTS)
    attributes = struct.pack("QQQ", rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _call(_libc.syscall, _LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    granted = {
        "read": _READ | _LIST,
        "execute": _READ | _EXECUTE,
        "write": _READ | _LIST | _WRITE | _TRUNCATE | _REMOVE | _MAKE | _RENAME,
    }
    for kind, paths in asked.items():
        for path in paths:
            try:
                at = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            allowed = granted[kind] & rights
            if not os.path.isdir(path):
                allowed &= _EXECUTE | _WRITE | _READ | _TRUNCATE
            rule = struct.pack("=Qi", allowed, at)
            _call(_libc.syscall, _LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, rule, 0)
            os.close(at)
    _call(_libc.syscall, _LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _first_to_go() -> None:
    """When memory runs out, the system takes this before anything else."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # it is a wish


def _seccomp() -> None:
    code = ctypes.create_string_buffer(_filter())
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(code))
    _call(_libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)


def _handed(data: bytes) -> int:
    """A descriptor that reads this, and stays open in the command."""
    at = os.memfd_create("filter", 0)
    os.write(at, data)
    os.lseek(at, 0, os.SEEK_SET)
    return at


def _filter() -> bytes:
    """A filter in the kernel's own small language: a foreign architecture dies, these calls are refused; a thread may
    be made and a process not. What clone3 is asked for cannot be read here: it is said not to be there, and then the
    C library calls clone."""
    architecture, numbers, clone, clone3 = _FORBIDDEN[os.uname().machine]
    load, equal, above, has, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, unknown, allow, kill = 0x00050001, 0x00050000 | _ENOSYS, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (answer, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(equal, 0, 1, clone3), (answer, 0, 0, unknown)]
    steps += [(equal, 0, 3, clone), (load, 0, 0, 16), (has, 0, len(numbers) + 3, _CLONE_THREAD), (answer, 0, 0, allow)]
    steps += [(above, len(numbers) + 1, 0, 0x40000000)]  # x32: the same calls by other numbers
    steps += [(equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


if __name__ == "__main__":
    main()
