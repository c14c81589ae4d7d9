"""Random Karel programs, as tokens, and worlds, in their JSON form.

Plain values: the package's own types are checked at random places when they are made, and Hypothesis wants no chance
but its own inside a strategy.
"""

from hypothesis import strategies as st

from corollout.tasks.karel.language import ACTIONS, COUNTS, TESTS
from corollout.tasks.karel.world import DIRECTIONS, MOST_MARKERS

Tokens = list[str]


def _bodies(statements: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    return st.lists(statements, min_size=1, max_size=4).map(lambda parts: [t for part in parts for t in part])


def _blocks(body: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    statements = st.one_of(
        st.builds(lambda n, b: ["REPEAT", n, "r(", *b, "r)"], st.sampled_from(COUNTS), body),
        st.builds(lambda c, b: ["WHILE", *c, "w(", *b, "w)"], conditions, body),
        st.builds(lambda c, b: ["IF", *c, "i(", *b, "i)"], conditions, body),
        st.builds(lambda c, b, e: ["IFELSE", *c, "i(", *b, "i)", "ELSE", "e(", *e, "e)"], conditions, body, body),
    )
    return _bodies(actions | statements)


actions = st.sampled_from(ACTIONS).map(lambda name: [name])
conditions = st.builds(
    lambda test, n: ["c(", *["not", "c("] * n, test, *["c)"] * (n + 1)], st.sampled_from(TESTS), st.integers(0, 2)
)
programs = st.recursive(_bodies(actions), _blocks, max_leaves=12).map(lambda body: ["DEF", "run", "m(", *body, "m)"])


@st.composite
def worlds(draw, smallest: int = 1, largest: int = 16, most_markers: int = MOST_MARKERS) -> dict[str, object]:
    rows, cols = draw(st.integers(smallest, largest)), draw(st.integers(smallest, largest))
    cells = st.tuples(st.integers(0, rows - 1), st.integers(0, cols - 1))
    row, col = draw(cells)
    walls = draw(st.sets(cells, max_size=8)) - {(row, col)}
    markers = draw(st.dictionaries(cells, st.integers(1, most_markers), max_size=6))
    return {
        "rows": rows,
        "cols": cols,
        "hero": f"{row}:{col}:{draw(st.sampled_from(DIRECTIONS))}",
        "blocked": " ".join(f"{r}:{c}" for r, c in sorted(walls)),
        "markers": " ".join(f"{r}:{c}:{n}" for (r, c), n in sorted(markers.items()) if (r, c) not in walls),
        "crashed": False,
    }
