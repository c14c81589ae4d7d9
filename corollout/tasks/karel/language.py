"""The Karel language: its tokens, its grammar, and programs as tokens, as text and as JSON.

    program   := DEF run m( block m)
    block     := statement+
    statement := action | REPEAT R=n r( block r) | WHILE cond w( block w) | IF cond i( block i)
               | IFELSE cond i( block i) ELSE e( block e)
    cond      := c( test c) | c( not cond c)
"""

PAD, START, END = 0, 1, 2
ACTIONS = ("move", "turnLeft", "turnRight", "pickMarker", "putMarker")
TESTS = ("frontIsClear", "leftIsClear", "rightIsClear", "markersPresent", "noMarkersPresent")
COUNTS = tuple(f"R={n}" for n in range(20))
TOKENS = (
    *("<pad>", "<s>", "</s>", "DEF", "run"),
    *("m(", "m)", "c(", "c)", "r(", "r)", "w(", "w)", "i(", "i)", "e(", "e)"),
    *COUNTS,
    *("REPEAT", "WHILE", "IF", "IFELSE", "ELSE", "not"),
    *TESTS,
    *ACTIONS,
)
ID = {token: number for number, token in enumerate(TOKENS)}
