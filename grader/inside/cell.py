"""An answer cell as code: without a notebook's syntax, or with the reason why it isn't Python."""

import functools
import platform
import re
import types
import warnings

LINES = (  # a pattern of lines that a notebook understands, and their Python
    (r"\A\s*%%.*", ""),
    (r"^([ \t]*(?:\w+[ \t]*=[ \t]*)?)%(?:time|timeit|prun)[ \t]+(?=[^-\s])", r"\1"),
    (r"^([ \t]*\w+[ \t]*=[ \t]*)[!%].*", r"\1None"),
    (r"^([ \t]*)(?:[%!?].*|[\w.]+\?+)$", r"\1pass"),
)


def code_of(source: str, file: str = "<answer>") -> types.CodeType:
    """The code of a cell, of which %%time, !pip and the like are left out. Raises SyntaxError with a sentence."""
    flaws, without = [], functools.reduce(lambda text, line: re.sub(*line, text, flags=re.MULTILINE), LINES, source)
    for text in (source, without):
        try:
            return _compile(text, file)
        except SyntaxError as flaw:
            flaws.append(flaw)
    number, line = flaws[0].lineno, (flaws[0].text or "").strip()
    reader = f"read by Python {platform.python_version()}"
    message = f"the answer cell is not Python yet. Line {number}: {flaws[0].msg} ({reader})"
    if mark := re.search(r"^(?:<<<<<<<|>>>>>>>).*", source, re.MULTILINE):
        number, line = source[: mark.start()].count("\n") + 1, mark[0]
        message = f"line {number} of the answer cell is the mark of a merge. Keep one version, and delete all marks."
    raise SyntaxError(f"{message}\n    {line}".rstrip(), (file, number, None, None))


def _compile(source: str, file: str) -> types.CodeType:
    if odd := re.search("[\0\ud800-\udfff]", source):  # NUL, and halves of characters
        line = source[: odd.start()].count("\n") + 1
        raise SyntaxError(f"{odd[0]!a} is a character that no program has", (file, line, None, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, file, "exec")
