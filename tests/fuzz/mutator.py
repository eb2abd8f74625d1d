"""Tries changed inputs on a reader in Python, as ``driver.c`` does on one in C.

Whole words are changed, so that some of what comes out can still be read; of JSON, values are
changed as well, and all of that can.
Nothing tells which code an input reaches, so nothing is kept. The same seed makes the same inputs.
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Reader = Callable[[bytes], None]

MOST_BYTES = 1 << 16
MOST_SECONDS = 10  # of processor time for one input
MOST_MEMORY = 4 << 30  # address space; the interpreter and its libraries take a quarter
_RESULTS = (".after", ".same", ".refused")  # of golden configurations
_MOST_CHANGES = 6
_OF_VALUES, _AT_THE_TOP = 0.7, 0.05
_WORD = re.compile(rb"\w+|[ \t\r\n]+|.", re.DOTALL)
# Words that readers may stumble over.
_ODD = (
    *(b"null", b"true", b"NaN", b"-1", b"0", b"1.5", b"1e999", b"9" * 25, b"9" * 5000, b"0x10"),
    *(b'""', b"[]", b"{}", b"[1]", b'{"a": 1}', b"''", b'"""', b"a", b"\n", b"=", b",", b"."),
    *(
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
        b"\\ud800",
        b"\\u0000",
        b'\\"',
        b"\xef\xbb\xbf",
    ),
    *(
        b"[" * 400 + b"]" * 400,
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b"{a=" * 400 + b"1" + b"}" * 400,
    ),
    *(b"[" * 3000, b'{"a":' * 3000, b"{a=" * 3000, b"a." * 3000, b" " * 3000),
)


_ODD_VALUES = (
    *(None, True, -1, 0, 1.5, 1e999, 10**25, "", [], {}, [1], {"a": 1}, [[]], "\0", "\ud800", "é"),
    *("0", "1", "-1", "a/b", "/", "..", "a" * 5000, "\n", " ", "%", "1e9", "GiB", [None], [{}]),
)


class Mutator:
    """Makes inputs out of those of a corpus."""

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        self._corpus = [_WORD.findall(data) for data in corpus]
        self._values = [value for data in corpus for value in _json(data)]
        self._random = random.Random(seed)

    def make(self) -> bytes:
        """The next input."""
        if self._values and self._random.random() < _OF_VALUES:
            value = copy.deepcopy(self._random.choice(self._values))
            for _ in range(self._random.randint(1, 3)):
                value = self._change_value(value)
            return json.dumps(value).encode()[:MOST_BYTES]
        words = list(self._random.choice(self._corpus))
        for _ in range(self._random.randint(1, _MOST_CHANGES)):
            self._change(words)
        return b"".join(words)[:MOST_BYTES]

    def _change(self, words: list[bytes]) -> None:
        draw = self._random
        at = draw.randrange(len(words) + 1)
        end = min(len(words), at + draw.choice((1, 1, 1, 4, 16)))
        other = draw.choice(self._corpus) or [b" "]
        start = draw.randrange(len(other))
        match draw.randrange(7):
            case 0:
                del words[at:end]
            case 1:
                words[at:at] = words[at:end]
            case 2:
                words[at:end] = [draw.choice(_ODD)]
            case 3:
                words[at:at] = [draw.choice(_ODD)]
            case 4:
                words[at : at + 1] = [draw.choice(other)]
            case 5:
                words[at:end] = other[start : start + draw.choice((1, 4, 16))]
            case _ if at < len(words):
                letters = bytearray(words[at])
                letters[draw.randrange(len(letters))] ^= 1 << draw.randrange(8)
                words[at] = bytes(letters)

    def _change_value(self, value: Any) -> Any:
        """``value``, or something in it, is another; or one thing of it is gone or twice."""
        draw = self._random
        if not value or not isinstance(value, dict | list) or draw.random() < _AT_THE_TOP:
            return copy.deepcopy(draw.choice((*_ODD_VALUES, *_ODD_VALUES, *self._values)))
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match draw.randrange(8):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[draw.choice(("", "a", "request", f"{key}x", str(key).upper()))] = value[key]
            case 1:
                value.append(value[key])
            case _:
                value[key] = self._change_value(value[key])
        return value


def _json(data: bytes) -> list[Any]:
    """What ``data`` says, if it is JSON."""
    try:
        return [json.loads(data)]
    except ValueError:
        return []


def main(reader: Reader, *words: str) -> int:
    """Read one input or many, as the words of ``driver.c`` say; the exit status."""
    if len(words) == 1:
        reader(Path(words[0]).read_bytes())
        return 0
    folder, _, failed, count, seconds, seed = words
    paths = [path for path in sorted(Path(folder).iterdir()) if path.suffix not in _RESULTS]
    corpus = [path.read_bytes() for path in paths]
    bounds = Bounds(int(count), int(seconds), int(seed))
    return run(reader, corpus, Path(failed), bounds)


class Bounds(NamedTuple):
    """How many inputs there are to be; where ``count`` is 0, as many as ``seconds`` are for."""

    count: int
    seconds: int
    seed: int


def run(reader: Reader, corpus: Sequence[bytes], failed: Path, bounds: Bounds) -> int:
    """Read changed inputs in a child; the one that ends it is written to ``failed``.

    Returns:
        The exit status: 1 where one failed.
    """
    shared = mmap.mmap(-1, MOST_BYTES + 16)
    child = os.fork()
    if child == 0:
        try:
            _read_all(reader, corpus, shared, bounds)
        except BaseException:  # noqa: BLE001 (whatever it is, it is the input's)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    runs, size = (int.from_bytes(shared[at : at + 8], "little") for at in (0, 8))
    print(f"{runs} inputs tried", flush=True)
    if status:
        print(f"ended with status {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
        failed.write_bytes(shared[16 : 16 + size])
    return int(status != 0)


def _read_all(reader: Reader, corpus: Sequence[bytes], shared: mmap.mmap, bounds: Bounds) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    mutator, end = Mutator(corpus, bounds.seed), time.monotonic() + bounds.seconds
    inputs = [*corpus]
    runs = 0
    while inputs or (runs < len(corpus) + bounds.count if bounds.count else time.monotonic() < end):
        data = inputs.pop() if inputs else mutator.make()
        runs += 1
        shared[:16] = runs.to_bytes(8, "little") + len(data).to_bytes(8, "little")
        shared[16 : 16 + len(data)] = data
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)  # whose signal ends the child
        reader(data)
