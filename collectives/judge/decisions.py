"""The lines that decide whether a rank makes a call, by the source around it: its own clock, a `continue`, a handler."""

import ast
import functools
import linecache
from typing import Iterable, Iterator, NamedTuple

from ..log.event import Line

MOST = 3  # decisions that a verdict names
DEPTH = 3  # assignments through which a value is followed
CLOCKS = ("time.", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.now")
FILES = (
    "os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.getmtime", "os.path.getsize", "os.listdir", "os.scandir",
    "os.stat", "os.access", "glob.glob", "glob.iglob",
)  # fmt: skip
PATH_METHODS = {"exists", "is_file", "is_dir", "iterdir", "rglob"}
RANDOM = ("random.", "numpy.random.", "secrets.", "uuid.uuid4", "os.urandom", "torch.rand", "torch.bernoulli")
REDUCES = ("dist.reduce", "torch.distributed.reduce")
# Functions that pass on what they get, and give it to no other rank.
PLAIN = {
    "abs",
    "all",
    "any",
    "bool",
    "enumerate",
    "float",
    "int",
    "len",
    "list",
    "max",
    "min",
    "print",
    "round",
    "str",
    "sum",
}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Decision(NamedTuple):
    """A line that decides whether a rank gets to a call, or in which order to several.

    kind: "clock", "files", "random", "reduce": its condition asks for that; "set": the order of a loop; "handler": it handles an
    exception; "leaves": continue, break or return; "barrier": the same, right after a barrier.  call: the line of the
    call.  attempt: the lines whose exceptions a handler handles.  branch: the side of an `if` that the call is in.
    """

    kind: str
    line: Line
    call: Line
    attempt: range = range(0)
    branch: str = ""


def decisions(lines: Iterable[Line], together: bool = False) -> list[Decision]:
    """The decisions on which of these lines a rank gets to, each with a call; for one line, on whether it does. The clearest first.

    together: whether the ranks are in one call; from one line, only the order of their calls can then be different.
    Empty where no source can be read.
    """
    by_line = [list(around(line)) for line in sorted(set(lines))]
    common = set.intersection(*({(d.kind, d.line, d.branch) for d in of} for of in by_line)) if len(by_line) > 1 else set()
    telling = [d for of in by_line for d in of if d.kind == "set" or (d.kind, d.line, d.branch) not in common]
    if together and len(by_line) == 1:
        telling = [d for d in telling if d.kind == "set"]
    telling.sort(key=lambda d: ("handler", "leaves").index(d.kind) + 1 if d.kind in ("handler", "leaves") else 0)
    return list({(d.kind, d.line): d for d in reversed(telling)}.values())[::-1][:MOST]


def is_skipped(call: Line, by: Line) -> bool:
    """Whether an exception that a handler takes from the line `by` keeps a rank from the call after it."""
    return any(d.kind == "handler" and by.number in d.attempt and by.number <= call.number for d in around(call))


def around(call: Line, depth: int = DEPTH) -> Iterator[Decision]:
    """The decisions on whether a rank makes a call: in its function, and where that is called from one line; nearest first."""
    if (source := _Code.of(call.file)) is None:
        return
    scope, steps = source.steps(call.number)
    yield from _in_function(call, source, scope, steps)
    if depth and (site := source.only_site(scope)):
        for outer in around(Line(call.file, *site), depth - 1):
            yield outer._replace(call=call)


def _in_function(call: Line, source: "_Code", scope: ast.AST, steps: list[tuple]) -> Iterator[Decision]:
    values = _Values(source, scope)

    def decision(kind: str, node: ast.AST, more: str = "", attempt: range = range(0)) -> Decision:
        text = source.text(node.lineno) + more
        return Decision(kind, Line(call.file, node.lineno, call.function, text), call, attempt)

    for depth in reversed(range(len(steps))):
        node, field, siblings, k = steps[depth]
        if isinstance(node, (ast.If, ast.While)) and (kind := values.asks(node.test)):
            yield decision(kind, node)._replace(branch=field)
        elif isinstance(node, (ast.For, ast.AsyncFor)) and field == "body":
            if kind := "set" if values.is_set(node.iter) else values.asks(node.iter):
                yield decision(kind, node)
        elif isinstance(node, ast.Try) and field == "body":
            for handler in node.handlers:
                if not isinstance(handler.body[-1], ast.Raise):
                    yield decision("handler", handler, attempt=_lines(node.body))
        elif isinstance(node, ast.With) and any(source.suppresses(item.context_expr) for item in node.items):
            yield decision("handler", node, attempt=_lines(node.body))
        looping = any(isinstance(outer, _LOOPS) for outer, *_ in steps[: depth + 1])
        round_again = isinstance(node, _LOOPS) and field == "body"
        after = siblings[k + 1 :] if round_again else []
        for statement in [*reversed(siblings[:k]), *after]:
            before = siblings[siblings.index(statement) - 1] if statement is not siblings[0] else None
            for jump, choice, attempt in _jumps(statement, looping):
                if isinstance(jump, ast.Continue) and statement in after:
                    continue
                word = type(jump).__name__.lower()
                if isinstance(choice, ast.ExceptHandler):
                    yield decision("handler", choice, attempt=attempt)
                elif isinstance(choice, ast.If):
                    more = f" {word}" * (jump.lineno != choice.lineno)
                    after_barrier = choice is statement and source.is_barrier(before)
                    yield decision(values.asks(choice.test) or ("barrier" if after_barrier else "leaves"), choice, more)


def _lines(body: list[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _jumps(node: ast.AST, looping: bool, choice: ast.AST | None = None, attempt: range = range(0)) -> Iterator[tuple]:
    """Each return of a statement, and each continue and break if it is in a loop: with the `if` or handler around it.

    Also the lines whose exceptions that handler handles.
    """
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.Return) or looping and isinstance(node, (ast.Continue, ast.Break)):
        yield node, choice, attempt
    looping = looping and not isinstance(node, _LOOPS)
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Try) and isinstance(child, ast.ExceptHandler):
            yield from _jumps(child, looping, child, _lines(node.body))
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            inner = node if isinstance(node, ast.If) and not isinstance(choice, ast.ExceptHandler) else choice
            yield from _jumps(child, looping, inner, attempt)


class _Code:
    """The statements of a file, and what its imported names are."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self.tree = ast.parse(text)
        self.imported = {"np": "numpy"}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                self.imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        self.functions: dict[str, list[ast.AST]] = {}
        # By name, the lines that use it, and the function they are in.
        self._sites: dict[str, list[tuple[int, str]]] = {}
        self._collect(self.tree, "<module>")
        # Ranks with the same seed draw the same numbers.
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        self.seeds = any("seed" in self.name(call.func).rpartition(".")[2].lower() for call in calls)

    def _collect(self, node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                self.functions.setdefault(child.name, []).append(child)
            elif isinstance(child, ast.Name):
                self._sites.setdefault(child.id, []).append((child.lineno, within))
            self._collect(child, child.name if isinstance(child, ast.FunctionDef) else within)

    def only_site(self, scope: ast.AST) -> tuple[int, str] | None:
        """The only line that uses a function of this file, and the function that this line is in."""
        name = getattr(scope, "name", "")
        sites = self._sites.get(name, [])
        return sites[0] if len(sites) == len(self.functions.get(name, ())) == 1 and sites[0][1] != name else None

    @classmethod
    def of(cls, file: str) -> "_Code | None":
        return _parsed("".join(linecache.getlines(file)))

    def text(self, number: int) -> str:
        return self._lines[number - 1].strip()

    def name(self, node: ast.AST) -> str:
        """'os.path.exists'; '' for an expression that isn't a dotted name."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        owner = self.name(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{owner}.{node.attr}" if owner else ""

    def suppresses(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self.name(node.func) in ("suppress", "contextlib.suppress")

    def is_barrier(self, node: ast.AST | None) -> bool:
        call = node.value if isinstance(node, ast.Expr) else None
        return isinstance(call, ast.Call) and self.name(call.func).rpartition(".")[2] == "barrier"

    def steps(self, number: int) -> tuple[ast.AST, list[tuple[ast.AST, str, list[ast.stmt], int]]]:
        """The innermost function around a line, and its statements around it, the outermost first.

        Each of these is (the statement, its field, that field's statements, the index of the one that has the line).
        """
        scope: ast.AST = self.tree
        steps: list[tuple] = []
        node, inside = scope, True
        while inside:
            inside = False
            for field, part in ast.iter_fields(node):
                statements = part if isinstance(part, list) else []
                for k, child in enumerate(statements):
                    is_part = isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
                    first = child.pattern if isinstance(child, ast.match_case) else child
                    last = child.body[-1] if isinstance(child, ast.match_case) else child
                    if is_part and first.lineno <= number <= (last.end_lineno or last.lineno):
                        steps.append((node, field, statements if isinstance(child, ast.stmt) else [], k))
                        node, inside = child, True
                        break
                if inside:
                    break
            if isinstance(node, _SCOPES) and inside:
                scope, steps = node, []
        return scope, steps


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> _Code | None:
    try:
        return _Code(text) if text else None
    except SyntaxError:  # a cell with commands of IPython's
        return None


class _Values:
    """The expressions from which a function's variables are made."""

    def __init__(self, source: _Code, scope: ast.AST) -> None:
        self._source = source
        self._values: dict[str, list[ast.expr]] = {}
        self._shared: set[str] = set()  # that another function gets, which may give them to other ranks
        self._reduced: set[str] = set()
        for node in _own_nodes(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.Call) and not self._is_plain(node):
                reduces = source.name(node.func) in REDUCES
                named = [keyword.value for keyword in node.keywords if not reduces or keyword.arg == "tensor"]
                arguments = [*(node.args[:1] if reduces else node.args), *named]  # of a reduce, its tensor
                names = {n.id for argument in arguments for n in ast.walk(argument) if isinstance(n, ast.Name)}
                kind = self._reduced if reduces else self._shared
                kind |= names
        self._reduced -= self._shared

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)

    def asks(self, expression: ast.AST, depth: int = DEPTH) -> str | None:
        """The kind of Decision that a condition is, by what it asks for; None if that is not known to differ between ranks."""
        if isinstance(expression, _SCOPES):
            return None
        if isinstance(expression, ast.Name):
            if expression.id in self._reduced:
                return "reduce"
            if expression.id in self._shared or not depth:
                return None
            kinds = (self.asks(value, depth - 1) for value in self._values.get(expression.id, ()))
            return next(filter(None, kinds), None)
        if isinstance(expression, ast.Call):
            if kind := self._kind(expression):
                return kind
            if not self._is_plain(expression):
                return (
                    self.asks(expression.func.value, depth)
                    if self._is_reading(expression)
                    else self._returns(expression, depth)
                )
        kinds = (self.asks(child, depth) for child in ast.iter_child_nodes(expression))
        return next(filter(None, kinds), None)

    def _returns(self, call: ast.Call, depth: int) -> str | None:
        """The kind of Decision that a result of one of this file's functions makes."""
        functions = self._source.functions.get(self._source.name(call.func), ())
        if len(functions) != 1 or not depth:
            return None
        values = _Values(self._source, functions[0])
        returns = (node.value for node in _own_nodes(functions[0]) if isinstance(node, ast.Return) and node.value)
        return next(filter(None, (values.asks(value, depth - 1) for value in returns)), None)

    def is_set(self, expression: ast.AST, depth: int = DEPTH) -> bool:
        """Whether an expression's items come in the order of a set, which is different in each process."""
        if isinstance(expression, ast.Set):
            numbers = all(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in expression.elts)
            return not numbers
        if isinstance(expression, ast.SetComp):
            return True
        if isinstance(expression, ast.BinOp):
            return self.is_set(expression.left, depth) or self.is_set(expression.right, depth)
        if isinstance(expression, ast.Name):
            values = self._values.get(expression.id, ())
            return bool(depth and values) and all(self.is_set(value, depth - 1) for value in values)
        if isinstance(expression, ast.Call):
            name = self._source.name(expression.func)
            if name in ("enumerate", "list", "tuple", "iter") and expression.args:
                return self.is_set(expression.args[0], depth)
            return name in ("set", "frozenset") and bool(expression.args)
        return False

    def _kind(self, call: ast.Call) -> str | None:
        name = self._source.name(call.func)
        if name.startswith(CLOCKS) and name != "time.sleep":
            return "clock"
        if name in FILES or isinstance(call.func, ast.Attribute) and call.func.attr in PATH_METHODS:
            return "files"
        drawn = name.startswith(RANDOM) and not name.endswith(("Random", "default_rng", "Generator"))
        return "random" if drawn and not self._source.seeds else None

    def _is_plain(self, call: ast.Call) -> bool:
        """Whether a call passes on what it gets, and gives it to no other rank."""
        name = self._source.name(call.func)
        computes = name.startswith(("torch.", "math.", "numpy.")) and not name.startswith("torch.distributed.")
        return name in PLAIN or computes or bool(self._kind(call))

    def _is_reading(self, call: ast.Call) -> bool:
        """Whether this is a method without arguments, as in `x.item()`."""
        return isinstance(call.func, ast.Attribute) and not call.args and not call.keywords


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function that are in no other function."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _own_nodes(child)
