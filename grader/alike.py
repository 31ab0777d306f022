"""Answers that are alike: copies of the course's own solution, and pairs of students with much the same code."""

import io
import keyword
import tokenize
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from helpers.exercise.notebook import is_answer, pristine, stubbed

from .gradebook import Student
from .submission import stubs

MARKS = ("### BEGIN SOLUTION", "### END SOLUTION")
LEAST_WRITTEN = 100  # tokens of a solution that nobody writes alike by chance
GRAM, LEAST_GRAMS, LEAST_ALIKE = 5, 30, 0.8  # tokens; pieces of a cell; the part of two cells' pieces that both have
SOLUTION = "the course's solution"


def is_own(source: str, solution: str) -> bool:
    """Whether an answer cell is the course's: it has its marks, or its tokens, comments and layout aside."""
    if any(mark in source for mark in MARKS):
        return True
    theirs = _tokens(solution)
    written = sum((Counter(theirs) - Counter(_tokens(stubbed(solution)))).values())
    return written >= LEAST_WRITTEN and _tokens(source) == theirs


def pieces(source: str, given: str) -> list[int]:
    """Every few consecutive tokens of an answer that the exercise didn't give, whatever its variables are called."""
    return sorted(_grams(source) - _grams(given))


def pairs(people: list[Student]) -> list[tuple[str, str, str, int]]:
    """Two students, an exercise, and the percentage of both cells' pieces that both have; the most alike first."""
    found = []
    for exercise in people[0].of if people else ():
        given = stubs(exercise)
        solved = {cell.id: cell.source for cell in filter(is_answer, pristine(exercise).cells)}
        cells = {name: {SOLUTION: _grams(source) - _grams(given[name])} for name, source in solved.items()}
        for student in people:
            grading = student.counted(exercise)
            if grading and grading.student == student.name:  # not its partner's
                for name, own in grading.pieces.items():
                    cells[name][student.name] = set(own)
        for by_student in cells.values():
            long = {name: own for name, own in by_student.items() if len(own) >= LEAST_GRAMS}
            for (one, a), (other, b) in combinations(long.items(), 2):
                few, many = sorted((len(a), len(b)))
                if few >= LEAST_ALIKE * many and (alike := len(a & b) / len(a | b)) >= LEAST_ALIKE:
                    found.append((one, other, exercise, round(100 * alike)))
    return sorted(found, key=lambda pair: -pair[3])


def _tokens(source: str) -> list[str]:
    return [token for token, _ in _typed(source)]


def _typed(source: str) -> Iterator[tuple[str, bool]]:
    """The tokens, without comments and layout, each with whether it is a name."""
    passed = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in passed:
                yield token.string, token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    except (tokenize.TokenError, SyntaxError, ValueError, SystemError):  # this of Python 3.12.0 and 3.12.1, at a NUL
        return


def _grams(source: str) -> set[int]:
    typed = [("", False), *_typed(source), ("", False)]
    plain = [
        "name" if is_name and before != "." and after not in (".", "(") else token
        for (before, _), (token, is_name), (after, _) in zip(typed, typed[1:], typed[2:])
    ]
    return {zlib.crc32("\0".join(plain[k : k + GRAM]).encode(errors="replace")) for k in range(len(plain) - GRAM + 1)}
