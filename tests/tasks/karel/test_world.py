"""Worlds as JSON, tensors, grids and drawings, and the errors of what is not a world."""

import numpy as np
import pytest
from hypothesis import given

from corollout.errors import InputError
from corollout.tasks.karel.grids import BORDER, OUTSIDE, WALL, Grids, pack, unpack
from corollout.tasks.karel.world import MOST_MARKERS, World, same_state
from tests.support.karel_strategies import worlds

SMALL = {"rows": 2, "cols": 3, "hero": "0:1:east", "blocked": "1:0", "markers": "0:2:3 1:2:1", "crashed": False}


@given(worlds())
def test_json_and_back(data):
    world = World.from_json(data)
    assert world.to_json() == data
    assert World.from_json(world.to_json(crashed=True)) == world


@given(worlds(smallest=2, most_markers=10))
def test_tensors_and_back(data):
    world = World.from_json(data)
    text = world.to_tensor()
    assert World.from_tensor(text) == world
    flat = np.zeros(16 * 18 * 18)
    indices = [int(entry.removesuffix(":1.0")) for entry in text.split()]
    assert indices == sorted(indices)
    flat[indices] = 1
    assert World.from_tensor(flat) == world
    assert World.from_tensor(flat.reshape(16, 18, 18).astype(bool)) == world


@given(worlds(largest=10))
def test_grids_and_back(data):
    world = World.from_json(data)
    for side in (12, 18):
        grids = pack([world, World.from_json(SMALL)], side)
        assert (grids.cells.dtype, grids.hero.dtype) == (np.uint8, np.int16)
        assert unpack(grids[0]) == world
        assert unpack(grids[1]) == World.from_json(SMALL)


def test_the_public_tensor_and_the_array_form():
    """Channel · 324 + (row + 1) · 18 + column + 1."""
    hero, wall, markers = 324 + 18 + 2, 4 * 324 + 2 * 18 + 1, [6 * 324 + 2 * 18 + 3, 8 * 324 + 18 + 3]
    border = [5 * 324 + cell for cell in (0, 1, 2, 3, 4, 18, 22, 36, 40, 54, 55, 56, 57, 58)]
    world = World.from_json(SMALL)
    assert world.to_tensor() == " ".join(f"{index}:1.0" for index in [hero, wall, *border, *markers])
    # As an array:
    grids = pack([World.from_json(SMALL)], 6)
    edge, inner = [BORDER] * 5 + [OUTSIDE], [[0, 0, 3], [WALL, 0, 1]]
    rows = [edge, *([BORDER, *row, BORDER, OUTSIDE] for row in inner), edge, [OUTSIDE] * 6, [OUTSIDE] * 6]
    assert grids.cells[0].tolist() == rows
    assert grids.hero.tolist() == [[1 * 6 + 2, 1]]
    assert pack([], 5).cells.shape == (0, 5, 5)


def test_drawings():
    assert World.from_json(SMALL).draw().splitlines() == ["┌───────┐", "│██ · 1 │", "│ · ▶ 3 │", "└───────┘"]
    crowded = World(1, 4, (0, 2, 3), frozenset({(0, 3)}), (((0, 0), 101), ((0, 2), 7)))
    assert crowded.draw().splitlines() == ["┌─────────────────┐", "│ 101   ·◀  7████ │", "└─────────────────┘"]
    assert [World(1, 1, (0, 0, d)).draw().splitlines()[1] for d in range(4)] == ["│ ▲ │", "│ ▶ │", "│ ▼ │", "│ ◀ │"]


def test_only_hero_and_markers_make_the_state():
    world = World.from_json(SMALL)
    assert same_state(world, World.from_json({**SMALL, "blocked": "", "rows": 5}))
    for change in ({"hero": "0:1:west"}, {"hero": "0:0:east"}, {"markers": "0:2:3"}, {"markers": "0:2:3 1:2:2"}):
        assert not same_state(world, World.from_json({**SMALL, **change}))


def test_the_order_of_markers_does_not_matter_and_some_fields_are_optional():
    cells = (((1, 2), 1), ((0, 2), 3))
    assert World(2, 3, (0, 1, 1), frozenset({(1, 0)}), cells) == World.from_json(SMALL)
    assert World.from_json({"rows": 1, "cols": 1, "hero": "0:0:south"}) == World(1, 1, (0, 0, 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 0}, "world, rows: must be from 1 to 100, not 0"),
        ({"rows": "2"}, "world, rows: expected a whole number, not '2'"),
        ({"rows": True}, "world, rows: expected a whole number, not True"),
        ({"cols": None}, "world, cols: expected a whole number, not None"),
        ({"hero": "0:1"}, "world, hero: expected row:column:direction as in 3:0:east, not '0:1'"),
        ({"hero": "2:0:east"}, "world, hero: 2:0 is outside the grid of 2 rows and 3 columns"),
        ({"hero": "1:0:east"}, "world, hero: 1:0 is a wall"),
        ({"blocked": "1:0 0"}, "world, blocked: expected row:column, not '0'"),
        ({"blocked": "1:3"}, "world, blocked: 1:3 is outside"),
        ({"markers": "0:2"}, "world, markers: expected row:column:count, not '0:2'"),
        ({"markers": "0:2:0"}, "world, markers: 0:2 has 0, but a cell with markers has 1 to 101"),
        ({"markers": "2:2:1"}, "world, markers: 2:2 is outside"),
        ({"markers": "1:0:1"}, "world, markers: 1:0 is a wall"),
        ({"markers": "0:2:1 0:2:3"}, "world, markers: 0:2 has two counts"),
        ({"crashed": "no"}, "world, crashed: expected true or false"),
    ],
)
def test_json_that_is_not_a_world(change, said):
    with pytest.raises(InputError, match=said):
        World.from_json({**SMALL, **change})


def test_required_fields_and_directions():
    for name in ("rows", "cols", "hero"):
        with pytest.raises(InputError, match=f"world, {name}: missing"):
            World.from_json({key: value for key, value in SMALL.items() if key != name})
    with pytest.raises(InputError, match="hero: the direction must be from 0 to 3, not 4"):
        World(1, 1, (0, 0, 4))


def entries(*added: int, without: tuple[int, ...] = ()) -> str:
    """The tensor of the small world with entries added and taken away."""
    present = [int(entry.split(":")[0]) for entry in World.from_json(SMALL).to_tensor().split()]
    return " ".join(f"{index}:1.0" for index in [*(i for i in present if i not in without), *added])


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("", "tensor, channel 5: expected the border"),
        ("hello", "tensor: expected index:1.0 with an index from 0 to 5183, not 'hello'"),
        ("344:2.0", "tensor: expected index:1.0"),
        ("5184:1.0", "tensor: expected index:1.0"),
        (entries(344), "tensor: index 344 occurs twice"),
        (entries(without=(1620,)), "tensor, channel 5: expected the border"),
        (entries(1620 + 20), "tensor, channel 5: expected the border"),
        (entries(without=(344,)), "tensor, channels 0 to 3: expected one hero, found 0"),
        (entries(4 * 324 + 18 + 2), "hero: 0:1 is a wall"),
        (entries(4 * 324 + 18 + 3), "markers: 0:2 is a wall"),
        (entries(6 * 324 + 18 + 3), "markers: 0:2 has two counts"),
        (entries(4 * 324), "blocked: -1:-1 is outside"),
        (entries(6 * 324 + 18 + 4), "markers: 0:3 is outside"),
        (" ".join(f"{1620 + 18 * r + c}:1.0" for r in range(3) for c in range(3) if r * c != 1), "2 to 16 rows"),
        (np.zeros((16, 18, 17)), "expected the shape 16 × 18 × 18"),
        (np.full(5184, 0.5), "expected zeros and ones only"),
        (np.full(5184, "1"), "expected zeros and ones only"),
        (np.ones(5184), "expected the border"),
    ],
)
def test_a_tensor_that_is_not_a_world(tensor, said):
    with pytest.raises(InputError, match=said):
        World.from_tensor(tensor)


def test_worlds_without_a_tensor():
    ten, eleven = (World(2, 2, (0, 0, 0), markers=(((1, 1), count),)) for count in (10, 11))
    assert World.from_tensor(ten.to_tensor()) == ten
    with pytest.raises(InputError, match="cell 1:1 has 11 markers, but a tensor has at most 10"):
        eleven.to_tensor()
    for rows, cols in ((1, 2), (2, 17)):
        with pytest.raises(InputError, match=f"{rows} rows and {cols} columns has no tensor: both must be from"):
            World(rows, cols, (0, 0, 0)).to_tensor()


def test_a_grid_has_room_for_the_border_too():
    world = World(4, 2, (0, 0, 0), markers=(((3, 1), MOST_MARKERS),))
    assert unpack(pack([world], 6)[0]) == world
    with pytest.raises(InputError, match=r"world 1 has 4 rows and 2 columns; a grid of side 5, .* holds at most 3"):
        pack([World(3, 3, (0, 0, 0)), world], 5)
    for side in (2, 182):
        with pytest.raises(InputError, match=f"a grid's side must be from 3 to 181, not {side}"):
            pack([world], side)


def test_arrays_that_are_not_a_packed_world():
    grids = pack([World.from_json(SMALL)], 6)
    with pytest.raises(InputError, match="expected one world"):
        unpack(grids)
    for change in ((0, 0, 0), (2, 2, BORDER), (5, 5, 0)):
        cells = grids.cells[0].copy()
        cells[change[:2]] = change[2]
        with pytest.raises(InputError):
            unpack(Grids(cells, grids.hero[0]))
    with pytest.raises(InputError, match="hero"):
        unpack(Grids(grids.cells[0], np.array([0, 1], np.int16)))
    with pytest.raises(InputError, match="rows"):
        unpack(Grids(np.zeros((6, 6), np.uint8), grids.hero[0]))
