"""Vocabulary trees: build, inspect, save and load them. They know tokens and nothing about policies."""

from corollout.trees.building import balanced_tree, huffman_tree, limited, permuted
from corollout.trees.clustering import bisect_tree, cluster_tree
from corollout.trees.files import load_tree, save_tree
from corollout.trees.tree import Tree, entropy
from corollout.trees.vectors import word_vectors

__all__ = [
    "Tree",
    "balanced_tree",
    "bisect_tree",
    "cluster_tree",
    "entropy",
    "huffman_tree",
    "limited",
    "load_tree",
    "permuted",
    "save_tree",
    "word_vectors",
]
