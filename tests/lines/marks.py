"""Our Python compiled so that each line notes, in a file that all processes share, that it runs.

A tracer slows down all that a process runs, and most of that is not ours. A mark takes 30 ns, and
is there also when the process is killed.
"""

from __future__ import annotations

import ast
import marshal
from importlib.util import MAGIC_NUMBER
from pathlib import Path

_UNCHECKED = (1).to_bytes(4, "little")  # Python takes the file whatever its source is
HEADER = MAGIC_NUMBER + _UNCHECKED + bytes(8)
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BEGIN = """
try:
    __ran__
except NameError:
    exec(open({source!r}).read() + {call!r}, {{"__name__": "begin"}})
"""
# A start keeps code that it compiles itself: let it keep this.
_COMPILES = "code_bundle.py"
_COMPILE = """
def compile(source, path, *words, _compile=compile, **named):
    folder, _, name = path.rpartition("/")
    kept = f"{{folder}}/__pycache__/{{name[:-3]}}.{{sys.implementation.cache_tag}}.pyc"
    if not path.startswith({root!r}):
        return _compile(source, path, *words, **named)
    return loads(open(kept, "rb").read()[{header}:])
"""


class Marks(ast.NodeTransformer):
    """Puts a mark before each statement; ``lines`` says which line of which file each is for."""

    def __init__(self, root: Path, notes: Path) -> None:
        source = Path(__file__).with_name("begin.py")
        self.lines: list[tuple[str, int]] = []
        self._begin = _BEGIN.format(source=str(source), call=f"begin({str(notes)!r})")
        self._compile = _COMPILE.format(root=f"{root}/", header=len(HEADER))
        self._path = ""

    def compiled(self, path: Path) -> bytes:
        """The file ``path`` as Python caches it, with marks."""
        self._path = str(path)
        tree = ast.parse(path.read_bytes())
        self.visit(tree)
        if path.name == _COMPILES:
            tree.body += ast.parse(self._compile).body
        code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        return HEADER + marshal.dumps(code)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Mark each block of ``node``; not of what may run when Python has ended the rest."""
        if getattr(node, "name", "") == "__del__":
            return node
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._block(node, block))
        return node

    def _block(self, owner: ast.AST, block: list[ast.stmt]) -> list[ast.stmt]:
        first = _first(owner, block)
        marked = block[:first]
        if isinstance(owner, ast.Module):
            marked += ast.parse(self._begin).body
        marked += map(self._mark, _heads(owner, block[:first]))
        for statement in block[first:]:
            decorators = getattr(statement, "decorator_list", ())
            marked += [self._mark(each.lineno) for each in (*decorators, statement)]
            marked.append(statement)
        return marked

    def _mark(self, line: int) -> ast.stmt:
        [mark] = ast.parse(f"__ran__[{len(self.lines)}] = 1").body
        self.lines.append((self._path, line))
        return ast.increment_lineno(mark, line - 1)


def _first(owner: ast.AST, block: list[ast.stmt]) -> int:
    """How many statements of ``block`` have to come before any other."""
    has_docstring = isinstance(owner, _SCOPES) and ast.get_docstring(owner, clean=False) is not None
    first = int(has_docstring)
    while first < len(block) and _is_future(block[first]):
        first += 1
    return first


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _heads(owner: ast.AST, before: list[ast.stmt]) -> list[int]:
    """Lines that were run where a block begins, and that no statement after it stands for."""
    futures = [each.lineno for each in before if _is_future(each)]
    if isinstance(owner, ast.ExceptHandler):
        return [owner.lineno]
    if isinstance(owner, ast.match_case):
        return [owner.pattern.lineno]
    return futures
