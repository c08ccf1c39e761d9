"""Which lines of the decoders a sample of cases reaches."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from tests.support.fuzz.cases import judge, make_case
from tests.support.fuzz.targets import TARGETS


def reached(names: Iterable[str], seed: int, count: int) -> Iterator[str]:
    """Try the first cases of each target; one line about each module, with the lines of functions that none reached."""
    targets = [TARGETS[name] for name in names]
    modules = {str(import_module(name).__file__): name for target in targets for name in target.reads}
    seen: dict[str, set[int]] = defaultdict(set)

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in modules:
            return None
        if event == "line":
            seen[name].add(frame.f_lineno)
        return trace

    threading.settrace(trace)  # the REST API answers on a thread of its own
    sys.settrace(trace)
    try:
        for target in targets:
            for number in range(count):
                judge(target, make_case(target, seed, number))
    finally:
        sys.settrace(None)
        threading.settrace(None)
    for path, name in sorted(modules.items(), key=lambda item: item[1]):
        lines = _lines_of_functions(path)
        missed = sorted(lines - seen[path])
        percent = 100 * len(lines & seen[path]) // max(1, len(lines))
        yield f"{percent:3}% {name:45} not reached: {','.join(map(str, missed[:25]))}"


def _lines_of_functions(path: str) -> set[int]:
    """Lines that run when a function is called: those of a module itself run when it is imported."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - of a module that was imported
        module = compile(file.read(), path, "exec")
    return {line for code in _functions(module) for line in _body(code)}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # a function's locals are not a dict; a class's are
                yield constant
            yield from _functions(constant)


def _body(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
