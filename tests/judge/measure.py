"""Runs a child process and measures it: exit code, wall time, peak resident memory.

The peak comes from wait4. Linux counts the parent's own pages in it until the exec, so a process that
measures small children must import nothing heavy: this module uses the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Run:
    """What one child did. A negative code is the signal that ended it."""

    code: int
    wall: float
    rss_mb: float
    stdout: str
    stderr: str
    timed_out: bool

    def ending(self) -> str:
        """The end of the process in words."""
        if self.timed_out:
            return "timeout"
        if self.code < 0:
            return signal.Signals(-self.code).name
        return str(self.code)


def run(argv: list[str], timeout: float = 60.0, cwd: Path | None = None) -> Run:
    """Runs argv in its own process group and kills the group after `timeout` seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, start_new_session=True
        )
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

        timer = threading.Timer(timeout, stop)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - start
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return Run(child.returncode, wall, usage.ru_maxrss / 1024, texts[0], texts[1], expired.is_set())
