"""Programs and worlds of others, where there are any: the folder COROLLOUT_KAREL_DATA, or ../shared/data/karel."""

import json
import os
from pathlib import Path

import pytest

from corollout.tasks.karel import World, from_json, parse, pretty, run, same_state, to_json, to_tokens, tokenize
from corollout.tasks.karel.grids import pack, unpack

FOLDER = Path(os.environ.get("COROLLOUT_KAREL_DATA", Path(__file__).parents[3] / "../shared/data/karel"))


def lines(name: str) -> list[str]:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path.read_text("utf-8").splitlines()


def test_recorded_examples_are_reproduced_exactly():
    examples = 0
    for record in map(json.loads, lines("genuine_train_records.jsonl")):
        for example in record["examples"]:
            before, after = (World.from_tensor(example[f"{name}grid_tensor"]) for name in ("inp", "out"))
            assert before.to_tensor() == example["inpgrid_tensor"]
            result = run(record["program_tokens"], before)
            assert (result.status, result.actions) == ("ok", example["actions"])
            assert result.world.to_tensor() == example["outgrid_tensor"]
            assert result.world == after
            assert World.from_json(before.to_json()) == unpack(pack([before], 18)[0]) == before
            examples += 1
    assert examples == 10


def test_recorded_traces_are_reproduced_exactly():
    def world(grid: dict) -> World:
        markers = tuple((tuple(cell), count) for *cell, count in grid["markers"])
        return World(grid["rows"], grid["cols"], tuple(grid["hero"]), frozenset(map(tuple, grid["blocked"])), markers)

    for trace in json.loads("\n".join(lines("genuine_traces.json"))):
        result = run(trace["program_tokens"], world(trace["input"]))
        assert (result.status, result.actions) == ("ok", trace["actions"])
        assert result.world == world(trace["last_grid"])


def test_tasks_of_another_project():
    """One of the 200 needs more than 200 ticks."""
    outcomes = []
    for task in map(json.loads, lines("third_party_tasks.jsonl")):
        program = from_json(task["program_json"])
        assert to_json(program) == task["program_json"]
        (example,) = task["task"]["examples"]
        before, after = World.from_json(example["inpgrid_json"]), World.from_json(example["outgrid_json"])
        result = run(program, before)
        assert result.status == "timeout" or same_state(result.world, after)
        outcomes.append(result.status)
    assert sorted(outcomes) == ["ok"] * 199 + ["timeout"]


def test_validation_programs_are_programs():
    programs = lines("genuine_val_programs.txt")
    assert len(programs) == 600
    for text in programs:
        program = parse(text)
        assert " ".join(to_tokens(program)) == text
        assert tokenize(pretty(program)) == text.split()
        assert from_json(to_json(program)) == program
