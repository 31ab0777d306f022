"""The colors of pictures; with the standard library alone, for a page."""

# One color per rank, none of them gray: gray is idle, a buffer, or of unknown origin.  To color-blind readers too, any
# two are at least 16 apart (CIEDE2000), and black or white text (whichever `canvas.ink_on` picks) has a contrast of
# 5.3:1: `tests/test_colours.py` measures both.
PALETTE = ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#6e131b", "#ef4989", "#337856", "#b1c7f3")
# Things other than ranks (algorithms, kinds of memory or of work, groups of figures) have separate colors, as far
# apart; `pale` ones are for a second tone, or for the background of text.
SERIES = ("#146464", "#8cb43c", "#1414a0", "#dc8ca0", "#786428", "#7878f0")
LETTERS = dict(zip("RSP", SERIES))  # replicated, sharded, partial
# Colors of lines that are invisible or too similar on a dark page, and their replacements.  #6e131b stays faint: to
# color-blind readers it differs by its darkness.
NIGHT = {"#1414a0": "#5c6cff", "#7878f0": "#d0b8ff", "#3f90da": "#5493f0", "#bd1f01": "#c41901", "#832db6": "#893dbe"}
INK = "#1c1e21"
SOFT = "#6b7177"  # secondary text: subtitles, steps, notes
FAINT = "#949ba2"  # present but irrelevant: a buffer about to be overwritten
TRAY = "#f2f4f6"  # the memory of a rank, where it holds nothing of interest
AMOUNT = "#c3c9cf"  # amounts other than a rank's data: work, memory
REDUCED = "#26292e"  # a cell that combines every rank
IDLE = "#dfe3e7"  # a lane before data arrives
ANYBODYS = "#51575e"  # data that may be several ranks', because their numbers are equal
GRID = "#e9ecef"  # the edges of steps, the marks of an axis
