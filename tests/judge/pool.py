"""A pool of worker processes whose crash or hang costs one answer, not the run.

onnx.checker and ONNX Runtime can abort the process on a bad file. Each worker is a Python process that
answers one JSON line per JSON line; a worker that dies or is late is replaced.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterable

HERE = Path(__file__).resolve().parent
Call = Callable[..., dict[str, Any]]


class Worker:
    """One worker process; `call` never raises because of what the task did."""

    def __init__(self, script: Path, timeout: float) -> None:
        self.script, self.timeout, self.child = script, timeout, None

    def _start(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, str(self.script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self.pending = b""

    def close(self) -> int:
        """Ends the worker; returns its exit status."""
        if self.child is None:
            return 0
        self.child.kill()
        code = self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()
        self.child = None
        return code

    def call(self, task: str, *args: Any, timeout: float | None = None) -> dict[str, Any]:
        """Runs a task: {"ok": value}, {"error": text}, {"crash": text} or {"timeout": seconds}."""
        if self.child is None:
            self._start()
        limit = timeout or self.timeout
        try:
            self.child.stdin.write(json.dumps([task, *args]).encode() + b"\n")
            self.child.stdin.flush()
            line = self._read_line(time.monotonic() + limit)
        except (BrokenPipeError, EOFError):
            code = self.child.wait()
            self.close()
            return {"crash": f"{task}: worker ended with status {code}"}
        except TimeoutError:
            self.close()
            return {"timeout": limit}
        return json.loads(line)

    def _read_line(self, deadline: float) -> bytes:
        fd = self.child.stdout.fileno()
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                raise EOFError
            self.pending += chunk
        line, self.pending = self.pending.split(b"\n", 1)
        return line


class Pool:
    """`size` workers; `map` runs a function over items with a worker's `call` as first argument."""

    def __init__(self, size: int = 2, timeout: float = 180.0, script: Path = HERE / "tasks.py") -> None:
        self.size = size
        self.free: queue.Queue[Worker] = queue.Queue()
        self.workers = [Worker(script, timeout) for _ in range(size)]
        for worker in self.workers:
            self.free.put(worker)

    def map(self, job: Callable[[Call, Any], Any], items: Iterable[Any]) -> list[Any]:
        """Results in the order of the items, whatever the order they were made in."""

        def one(item: Any) -> Any:
            worker = self.free.get()
            try:
                return job(worker.call, item)
            finally:
                self.free.put(worker)

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(one, items))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()


def serve(tasks: dict[str, Callable[..., Any]]) -> None:
    """The worker's side: answers calls from standard input; whatever libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task, *args = json.loads(line)
        try:
            answer = {"ok": tasks[task](*args)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
