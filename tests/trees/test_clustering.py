"""Clustering and bisection of vectors."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import corollout.trees.clustering as module
from corollout.trees import balanced_tree, bisect_tree, cluster_tree, limited
from corollout.trees.clustering import cluster_memory
from corollout.trees.tree import least_depth
from tests.support.errors import refused
from tests.support.tree_reference import clusters_of, plain_clusters

METHODS = ("ward", "complete", "average")


def cloud(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def blobs(sizes: list[int], distance: float = 100.0, dimension: int = 3) -> tuple[np.ndarray, list[frozenset[int]]]:
    """Groups of vectors that are far from each other, shuffled, and which tokens are in each."""
    group = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = distance * cloud(len(sizes), dimension, seed=2)
    vectors = centres[group] + cloud(len(group), dimension)
    return vectors, [frozenset((group == number).nonzero()[0].tolist()) for number in range(len(sizes))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("size", "dimension"), [(1, 2), (2, 1), (3, 3), (9, 2), (16, 5)])
def test_the_nearest_clusters_are_merged_first(method: str, size: int, dimension: int):
    vectors = cloud(size, dimension, seed=size)
    tree = cluster_tree(vectors, method)
    assert clusters_of(tree) == plain_clusters(vectors, method)
    assert cluster_tree(vectors.astype(np.float32), method).size == size


@pytest.mark.parametrize("method", METHODS)
def test_ties_are_balanced(method: str):
    assert cluster_tree(np.ones((50, 3)), method).depth == 6
    assert cluster_tree(np.full((50, 3), 0.1, np.float32), method).depth == 6
    # Four vectors, twelve times each, among others that are all different.
    vectors = np.concatenate([np.repeat(10 * cloud(4, 2), 12, 0), 100 + cloud(5, 2)])
    tree = cluster_tree(vectors, method)
    for same in np.arange(48).reshape(4, 12):
        assert frozenset(same.tolist()) in clusters_of(tree)
        assert np.ptp(tree.depths[same]) <= 1
    if method != "ward":  # where merges of equidistant tokens get more expensive
        assert cluster_tree(np.eye(40), method).depth == 6


@pytest.mark.parametrize("method", METHODS)
def test_a_clustering_can_be_limited(method: str):
    vectors = 4.0 ** np.arange(40)[:, None] * np.ones(2)  # a chain, whatever the method
    free = cluster_tree(vectors, method)
    assert free.depth == 39
    assert all(cluster_tree(vectors, method, max_depth=depth) == limited(free, depth) for depth in (6, 7, 20))


def test_too_much_memory_is_refused():
    assert cluster_memory(10_000) == pytest.approx(8 * 10_000**2, rel=1e-3)
    vectors = cloud(50, 2)
    assert cluster_tree(vectors, memory=cluster_memory(50)).size == 50
    refused(r"clustering 50 tokens needs 0\.0 GB of memory", cluster_tree, vectors, memory=cluster_memory(50) - 1)
    wide = np.broadcast_to(np.float32(0), (50_000, 2))
    refused(r"clustering 50,000 tokens needs 20.0 GB of memory, and 4.0 GB are .*bis", cluster_tree, wide)


@pytest.mark.parametrize("build", [cluster_tree, bisect_tree])
def test_bad_vectors(build):
    broken, endless = cloud(6, 2), cloud(6, 2)
    broken[4, 1], endless[2, 0] = np.nan, np.inf
    for vectors, message in (
        (broken, "the vector of token 4 has non-finite entries"),
        (endless, "the vector of token 2"),
        (np.ones(5), "vectors must be an array [token, dimension], not of shape (5,)"),
        (np.ones((0, 5)), "not of shape (0, 5)"),
        (np.ones((5, 0)), "not of shape (5, 0)"),
        (1e200 * cloud(6, 2), "not finite: scale the vectors down"),
    ):
        refused(re.escape(message), build, vectors)
    refused(r"6 tokens do not fit into a tree of depth 2", build, cloud(6, 2), max_depth=2)
    refused(r"unknown clustering method 'single': choose one of ward, ", cluster_tree, cloud(6, 2), "single")


def test_few_vectors_are_not_cut():
    vectors = cloud(200, 4)
    assert bisect_tree(vectors) == cluster_tree(vectors)
    assert bisect_tree(vectors, 9) == cluster_tree(vectors, max_depth=9)
    assert bisect_tree(cloud(1, 3)) == balanced_tree(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_groups_that_lie_apart_are_found(dtype: type):
    vectors, groups = blobs([400, 300, 300])
    kept = vectors.astype(dtype)
    before = kept.copy()
    tree = bisect_tree(kept)
    assert set(groups) <= clusters_of(tree)
    assert np.array_equal(kept, before)
    assert sorted(tree.order) == list(range(1000))


def test_a_cut_is_where_two_means_put_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_GROUP", 2)
    for seed in range(5):
        vectors = cloud(60, 2, seed=seed) * [3, 1]
        tree = bisect_tree(vectors)
        left, right = (tree.tokens(node) if node >= 0 else np.array([~node]) for node in tree.children[0].tolist())
        means = vectors[left].mean(0), vectors[right].mean(0)
        to_left, to_right = (np.linalg.norm(vectors - mean, axis=1) for mean in means)
        assert (to_left[left] < to_right[left]).all()
        assert (to_right[right] < to_left[right]).all()


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 40), st.integers(1, 3))
def test_any_vectors_can_be_bisected_within_any_depth(data: st.DataObject, size: int, dimension: int):
    numbers = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0])
    vectors = data.draw(arrays(np.float32, (size, dimension), elements=numbers))
    limit = data.draw(st.none() | st.integers(least_depth(size), 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GROUP", 3)
        tree = bisect_tree(vectors, limit)
    assert sorted(tree.order) == list(range(size))
    assert tree.depth <= (10 * least_depth(size) if limit is None else limit)


@pytest.mark.parametrize("farthest", [0.0, 9.0])
def test_a_cut_is_moved_to_leave_room(farthest: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_GROUP", 2)
    # Which side of the cut is the left one depends on which token is the farthest from the centre.
    first = np.concatenate([1 - np.arange(28) / 1000, -7 - np.arange(4) / 1000])
    vectors = np.stack([first, np.zeros(32)], 1)
    vectors[0, 1] = farthest
    apart = frozenset(range(28, 32))
    assert all(apart in clusters_of(bisect_tree(vectors, depth)) for depth in (6, 8))
    # The nearest of the others come along, so that there are sixteen on each side.
    assert frozenset(range(16, 32)) in clusters_of(bisect_tree(vectors, 5))


def test_vectors_that_do_not_differ_are_halved():
    tiny = np.full((1000, 3), 2, np.float32)
    tiny[:, 0] = np.arange(1000) % 2 * np.float32(1e-45)  # underflows when it is scaled
    for vectors in (np.ones((1000, 3)), np.full((1000, 3), 0.1, np.float32), tiny):
        assert bisect_tree(vectors).depth == 10
    assert bisect_tree(np.concatenate([np.zeros((999, 2)), np.ones((1, 2))])).depth <= 13


def test_a_cut_leaves_an_eighth_on_each_side():
    vectors = np.concatenate([cloud(1000, 2), (10.0 ** np.arange(3, 30))[:, None] * np.ones(2)])
    tree = bisect_tree(vectors)
    for node, children in enumerate(tree.children):
        if tree.leaf_counts[node] > 256:
            assert min(tree.leaf_counts[children]) >= tree.leaf_counts[node] // 8
    assert bisect_tree(np.eye(600)).depth < 30
    assert bisect_tree(vectors, 11).depth == 11
