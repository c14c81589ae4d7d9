"""Vocabulary trees on the terminal: how many words at which depth, and which words stand together."""

from collections.abc import Callable, Sequence

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Drawing

from corollout.trees import Tree

_BAR = 40  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAMED = 6  # words that stand for a subtree which is not drawn
_TOP_LEVELS = 3
_FAINT = "grey50"


def depth_bars(tree: Tree, counts: np.ndarray | None) -> Table:
    """A bar for each depth: how many words are there, and which share of the tokens in captions."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("depth", "words"):
        table.add_column(heading, justify="right")
    table.add_column("")
    if counts is not None:
        table.add_column("tokens in\ncaptions", justify="right")
    words = tree.histogram
    for depth in range(int(tree.depths.min()), tree.depth + 1):
        row = [str(depth), f"{words[depth]:,}", _bar(float(words[depth] / words.max()))]
        if counts is not None:
            row.append(f"{100 * counts[tree.depths == depth].sum() / counts.sum():.1f} %")
        table.add_row(*row)
    return table


def top(tree: Tree, words: Sequence[str]) -> Drawing:
    """The first decisions, and some of the words that each leads to."""
    return _drawn(tree, words, 0, lambda child: tree.node_depths[child] < _TOP_LEVELS)


def neighbourhood(tree: Tree, words: Sequence[str], token: int, count: int) -> Drawing:
    """The smallest subtree around a token that has so many words; where it is larger, parts of it are not drawn."""
    path = [node for node, _ in tree.path(token)]
    large = [node for node in path if tree.leaf_counts[node] >= count]
    root = large[-1] if large else 0
    return _drawn(tree, words, root, lambda child: child in path or tree.leaf_counts[child] <= count, token)


def _drawn(tree: Tree, words: Sequence[str], root: int, opens: Callable[[int], bool], token: int = -1) -> Drawing:
    """The subtree of an inner node with those inner nodes taken apart that ``opens`` says; one token is marked."""
    if tree.size == 1:
        return Drawing(Text(words[0], "bold"))
    bits = "".join(str(int(bit)) for _, bit in tree.path(int(tree.tokens(root)[0]))[: tree.node_depths[root]])
    drawing = Drawing(Text.assemble((f"{bits} " if bits else "", _FAINT), f"{tree.leaf_counts[root]:,} words"))
    waiting = [(root, drawing)]
    while waiting:
        node, place = waiting.pop()
        for bit in (0, 1):
            child = int(tree.children[node, bit])
            label = Text(f"{bit} ", _FAINT)
            if child < 0:
                place.add(label.append(words[~child], "bold cyan" if ~child == token else "bold"))
            elif opens(child):
                waiting.append((child, place.add(label.append(f"{tree.leaf_counts[child]:,} words", _FAINT))))
            else:
                place.add(label.append(_summary(tree, words, child)))
    return drawing


def _summary(tree: Tree, words: Sequence[str], node: int) -> str:
    """Some words below an inner node, those of the smallest ids, which are the most frequent ones."""
    tokens = np.sort(tree.tokens(node))
    named = ", ".join(words[int(token)] for token in tokens[:_NAMED])
    return f"{len(tokens):,} words: {named}{', …' if len(tokens) > _NAMED else ''}"


def _bar(share: float) -> Text:
    eighths = max(round(8 * _BAR * share), 1 if share > 0 else 0)
    return Text("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip(), "cyan")
