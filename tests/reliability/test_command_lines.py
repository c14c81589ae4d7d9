"""A small share of the fuzzed command lines, and a check that the suite would notice a traceback."""

from collections import Counter

from tests.reliability.altered_commands import commands, make_case
from tests.reliability.command_lines import SUITE, run_case


def test_some_command_lines() -> None:
    outcomes = list(SUITE.run(25, 0))
    assert sum(outcome.cases for outcome in outcomes) == 25
    assert [failure for outcome in outcomes for failure in outcome.failures] == []


def test_cases_are_of_every_command_and_the_same_for_a_seed() -> None:
    cases = [make_case(1, number) for number in range(300)]
    assert cases == [make_case(1, number) for number in range(300)]
    assert Counter(name for name, _ in cases).keys() == commands().keys()
    assert len({tuple(arguments) for _, arguments in cases}) > 200


def test_a_traceback_and_an_escape_are_noticed(monkeypatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.reliability.command_lines.app", fail)
    assert run_case([]).startswith("traceback: ZeroDivisionError")
    monkeypatch.setattr("tests.reliability.command_lines.app", lambda: print("\x1b[31m"))
    assert run_case([]).startswith("output that a terminal would obey")
