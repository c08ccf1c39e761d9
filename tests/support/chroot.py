"""A program in a root file system, as a container would have it: root read-only, a user without rights, PID 1.

What docker does by namespaces and mounts is done here by root with util-linux and `chroot`: a mount namespace in which
the root is bound read-only, a fresh /tmp and /proc, a PID namespace of which the program is the first process, no new
privileges. The network is the machine's own, so that the program reaches servers on 127.0.0.1.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Container:
    """What to run, and in what. Paths of `mounts` are targets in the root with what is bound there, read-only.

    `scratch` are folders that can be written to, each with mount options; they are empty and go with the program.
    """

    root: Path
    user: str
    environment: Mapping[str, str]
    working_directory: str
    mounts: Mapping[str, Path] = field(default_factory=dict)
    scratch: Mapping[str, str] = field(default_factory=lambda: {"/tmp": "nosuid,nodev,noexec,size=1g"})  # noqa: S108 - a mount

    def command(self, words: Sequence[str]) -> list[str]:
        """The words to start it with, as root. Signals to the process go to `unshare`, which dies with the program."""
        uid, _, gid = self.user.partition(":")
        inside = [
            *("setpriv", "--no-new-privs"),
            *("chroot", f"--userspec={uid}:{gid}", "--groups=", str(self.root)),
            *("env", "-i", f"--chdir={self.working_directory}"),
            *(f"{name}={value}" for name, value in self.environment.items()),
            *words,
        ]
        script = "\n".join([*self._mounting(), f"exec {shlex.join(inside)}"])
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private", "sh", "-euc", script]

    def _mounting(self) -> list[str]:
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}", f"mount -o remount,bind,ro {root}"]
        lines += [f"mount -t proc -o nosuid,nodev,noexec proc {root}/proc", f"mount --bind /dev {root}/dev"]
        for target, source in self.mounts.items():
            place = f"{root}{shlex.quote(target)}"
            lines += [f"mount --bind {shlex.quote(str(source))} {place}", f"mount -o remount,bind,ro {place}"]
        for target, options in self.scratch.items():
            lines.append(f"mount -t tmpfs -o mode=1777,{options} tmpfs {root}{shlex.quote(target)}")
        return lines
