"""Command lines of sandboxes that may be installed. Each hides other processes and dies as a whole."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.sandbox.view import View, gpu_devices

Wrap = Callable[[str, View, Path, Mapping[str, str], Sequence[str]], list[str]]
"""(name of this sandbox, view, working folder, environment, command) → the command line that starts it. The command
gets standard input, output and error as they are.
"""

KERNEL_SETTINGS: Final = tuple(f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs"))
"""Files that root can write even without capabilities: `kernel/core_pattern` among them names a program that the kernel
starts outside of the sandbox. Podman covers them by itself.
"""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A program that runs a command in a sandbox.

    `wrap`: see `Wrap`. `end`: the command that ends a sandbox by its name, where killing its starter does not.
    """

    name: str
    program: str
    version: str
    wrap: Wrap
    end: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def bubblewrap(
    name: str, view: View, folder: Path, environment: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """Return the command line of bubblewrap (`man bwrap`). The environment is that of its starter."""
    mounts = {"empty": "--tmpfs {0}", "shown": "--ro-bind {0} {0}", "writable": "--bind {0} {0}"}
    return [
        *(located("bwrap"), "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if view.network else ("--unshare-net",)),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *(word for path in KERNEL_SETTINGS for word in ("--ro-bind-try", path, path)),
        *(word for path in gpu_devices() for word in ("--dev-bind", path, path)),
        *(word.format(path) for path, kind in view.mounts() for word in mounts[kind].split()),
        *("--chdir", str(folder), "--", *command),
    ]


def podman(name: str, view: View, folder: Path, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the command line of podman (`man podman-run`), over this machine's own files.

    Podman copies standard input, so the socket is passed under the number 3, and becomes standard input inside.
    """
    mounts = {"empty": "--tmpfs {0}", "shown": "--volume {0}:{0}:ro", "writable": "--volume {0}:{0}:rw"}
    run = [
        *(located("podman"), "run", "--rm", "--name", name, "--preserve-fds", "1", "--read-only", "--cap-drop", "all"),
        *("--security-opt", "label=disable", "--security-opt", "no-new-privileges", "--pids-limit", "-1"),
        *("--network", "host" if view.network else "none"),
        *(f"--device={path}" for path in gpu_devices()),
        *(word.format(path) for path, kind in view.mounts() for word in mounts[kind].split()),
        *(f"--env={key}={value}" for key, value in environment.items()),
        *("--workdir", str(folder), "--rootfs", "/"),
        *("sh", "-c", 'exec "$@" 0<&3 3<&-', "sh", *command),
    ]
    return ["sh", "-c", 'exec "$@" 3<&0 0</dev/null', "sh", *run]


def systemd_run(
    name: str, view: View, folder: Path, environment: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """Return the command line of systemd-run (`man systemd.exec`), as a service of the system's manager.

    Only systemd 257 and later hide processes of the same user (PrivatePIDs). Earlier ones fail the trial.
    """
    mounts = {"empty": "TemporaryFileSystem={}", "shown": "BindReadOnlyPaths={}", "writable": "BindPaths={}"}
    properties = [
        *("PrivatePIDs=yes", "PrivateIPC=yes", "ProtectSystem=strict", "NoNewPrivileges=yes"),
        "ProtectKernelTunables=yes",
        *("CapabilityBoundingSet=", "KillMode=control-group"),
        *(() if view.network else ("PrivateNetwork=yes",)),
        *("PrivateDevices=no", "DevicePolicy=closed", *(f"DeviceAllow={path} rw" for path in gpu_devices())),
        *(mounts[kind].format(path) for path, kind in view.mounts()),
    ]
    return [
        *(located("systemd-run"), "--pipe", "--wait", "--collect", "--quiet", "--unit", name),
        *(word for each in properties for word in ("--property", each)),
        *(f"--setenv={key}={value}" for key, value in environment.items()),
        *("--working-directory", str(folder), "--", *command),
    ]


KINDS: Final[Sequence[tuple[str, str, Wrap, Sequence[str]]]] = (
    ("bubblewrap", "bwrap", bubblewrap, ()),
    ("podman", "podman", podman, ("podman", "kill")),
    ("systemd-run", "systemd-run", systemd_run, ("systemctl", "kill", "--signal=KILL")),
)
"""(name, program, its command line, the command that ends one), in the order in which they are looked for."""


def installed() -> list[Sandbox]:
    """Return the sandboxes whose programs are on PATH, the preferred one first."""
    return [
        Sandbox(name, program, version_of(program), wrap, end)
        for name, program, wrap, end in KINDS
        if shutil.which(program)
    ]


def located(program: str) -> str:
    """Return the path of a program. An engine's own PATH, by which its command line is started, may not have it."""
    return shutil.which(program) or program


def version_of(program: str) -> str:
    """Return the first number in the output of `PROGRAM --version`."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    number = re.search(r"\d[\w.]*", done.stdout)
    return number[0] if number else "of an unknown version"
