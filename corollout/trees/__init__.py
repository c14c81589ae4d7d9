"""Vocabulary trees: build them, look at them, save and load them. They know tokens, and nothing of policies."""

from corollout.trees.building import balanced_tree, huffman_tree, limited, permuted
from corollout.trees.clustering import Method, bisect_tree, cluster_memory, cluster_tree
from corollout.trees.files import StoredTree, load_tree, save_tree, words_digest
from corollout.trees.tree import Codes, Tree, entropy, least_depth
from corollout.trees.vectors import word_vectors

__all__ = [
    "Codes",
    "Method",
    "StoredTree",
    "Tree",
    "balanced_tree",
    "bisect_tree",
    "cluster_memory",
    "cluster_tree",
    "entropy",
    "huffman_tree",
    "least_depth",
    "limited",
    "load_tree",
    "permuted",
    "save_tree",
    "word_vectors",
    "words_digest",
]
