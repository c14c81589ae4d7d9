"""Vocabulary trees on the terminal: how many words at each depth, and which words are close."""

from collections.abc import Callable, Sequence

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Drawing

from corollout.trees import Tree

_BAR = 40  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAMED = 6  # words listed for a subtree that is not drawn
_TOP_LEVELS = 3
_FAINT = "grey50"


def depth_bars(tree: Tree, counts: np.ndarray | None) -> Table:
    """A bar for each depth with the number of words, and their share of the tokens in captions."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("depth", "words", "", *(["tokens in\ncaptions"] if counts is not None else [])):
        table.add_column(heading, justify="right" if heading else "left")
    words = tree.histogram
    for depth in range(int(tree.depths.min()), tree.depth + 1):
        eighths = max(round(8 * _BAR * float(words[depth] / words.max())), 1 if words[depth] else 0)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        row = [str(depth), f"{words[depth]:,}", Text(bar, "cyan")]
        if counts is not None:
            row.append(f"{100 * counts[tree.depths == depth].sum() / counts.sum():.1f} %")
        table.add_row(*row)
    return table


def top(tree: Tree, words: Sequence[str]) -> Drawing:
    """The first decisions and some of the words that each leads to."""
    return _drawn(tree, words, 0, lambda child: tree.node_depths[child] < _TOP_LEVELS)


def neighbourhood(tree: Tree, words: Sequence[str], token: int, count: int) -> Drawing:
    """The smallest subtree around a token with at least ``count`` words; large parts of it are not drawn."""
    path = [node for node, _ in tree.path(token)]
    large = [node for node in path if tree.leaf_counts[node] >= count]
    root = large[-1] if large else 0
    return _drawn(tree, words, root, lambda child: child in path or tree.leaf_counts[child] <= count, token)


def _drawn(tree: Tree, words: Sequence[str], root: int, expands: Callable[[int], bool], token: int = -1) -> Drawing:
    """The subtree of an inner node, expanding the inner nodes that ``expands`` accepts; ``token`` is highlighted."""
    if tree.size == 1:
        return Drawing(Text(words[0], "bold"))
    bits = "".join(str(int(bit)) for _, bit in tree.path(int(tree.tokens(root)[0]))[: tree.node_depths[root]])
    drawing = Drawing(Text.assemble((f"{bits} " if bits else "", _FAINT), f"{tree.leaf_counts[root]:,} words"))
    waiting = [(root, drawing)]
    while waiting:
        node, branch = waiting.pop()
        for bit in (0, 1):
            child = int(tree.children[node, bit])
            label = Text(f"{bit} ", _FAINT)
            if child < 0:
                branch.add(label.append(words[~child], "bold cyan" if ~child == token else "bold"))
            elif expands(child):
                waiting.append((child, branch.add(label.append(f"{tree.leaf_counts[child]:,} words", _FAINT))))
            else:  # some of its words: those with the smallest ids, which are the most frequent
                tokens = np.sort(tree.tokens(child))
                named = [*(words[int(token)] for token in tokens[:_NAMED]), *(["…"] if len(tokens) > _NAMED else [])]
                branch.add(label.append(f"{len(tokens):,} words: {', '.join(named)}"))
    return drawing
