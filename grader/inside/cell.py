"""An answer cell as Python: without a notebook's syntax, or with the reason why it isn't Python."""

import platform
import re
import warnings

LINES = (  # a pattern of lines that a notebook understands, and their Python
    (r"\A\s*%%.*", ""),
    (r"^([ \t]*(?:\w+[ \t]*=[ \t]*)?)%(?:time|timeit|prun)[ \t]+(?=[^-\s])", r"\1"),
    (r"^([ \t]*\w+[ \t]*=[ \t]*)[!%].*", r"\1None"),
    (r"^([ \t]*)(?:[%!?].*|[\w.]+\?+)$", r"\1pass"),
)


def plain(source: str, file: str = "<answer>") -> str:
    """The source, line by line, with %%time, !pip and the like taken out. Raises SyntaxError with a sentence."""
    error, without = _flaw(source), source
    for pattern, python in LINES if error else ():
        without = re.sub(pattern, python, without, flags=re.MULTILINE)
    if not error or without != source and not _flaw(without):
        return without
    number, line = error.lineno, (error.text or "").strip()
    reader = f"read by Python {platform.python_version()}"
    message = f"the answer cell is not Python yet. Line {number}: {error.msg} ({reader})"
    if mark := re.search(r"^(?:<<<<<<<|>>>>>>>).*", source, re.MULTILINE):
        number, line = source[: mark.start()].count("\n") + 1, mark[0]
        message = f"line {number} of the answer cell is the mark of a merge. Keep one version, and delete all marks."
    raise SyntaxError(f"{message}\n    {line}".rstrip(), (file, number, None, None))


def _flaw(source: str) -> SyntaxError | None:
    if odd := re.search("[\0\ud800-\udfff]", source):  # NUL, and halves of characters
        line = source[: odd.start()].count("\n") + 1
        return SyntaxError(f"{odd[0]!a} is a character that no program has", ("<answer>", line, None, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<answer>", "exec")
        except SyntaxError as error:
            return error
    return None
