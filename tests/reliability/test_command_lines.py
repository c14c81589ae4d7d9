"""A small share of the fuzzed command lines, and a check that the suite would notice a traceback."""

from collections import Counter

from tests.reliability.altered_commands import commands, make_case
from tests.reliability.bad_commands import make_bad_case
from tests.reliability.command_lines import SUITE, run_bad, run_case, worker


def test_some_command_lines_altered_and_bad() -> None:
    with worker() as one:  # making its folder takes longer than all cases
        altered = [make_case(0, number) for number in range(25)]
        problems = [f"{problem}: {arguments}" for _, arguments in altered if (problem := one.run(arguments))]
        outcomes = list(run_bad(one, 60, 0))
    assert problems == []
    assert [failure for outcome in outcomes for failure in outcome.failures] == []
    assert Counter(outcome.what for outcome in outcomes).keys() == {
        f"wrong: {make_bad_case(0, number).wrong}" for number in range(60)
    }


def test_bad_cases_are_of_every_kind_and_the_same_for_a_seed() -> None:
    cases = [make_bad_case(3, number) for number in range(300)]
    again = [make_bad_case(3, number) for number in range(300)]
    assert [case.arguments for case in cases] == [case.arguments for case in again]
    assert min(Counter(case.wrong for case in cases).values()) > 10
    assert len(Counter(case.wrong for case in cases)) == 9
    assert len({case.arguments[0] for case in cases}) > 10


def test_a_suite_tries_both() -> None:
    assert (SUITE.name, SUITE.cases // 10) == ("command_lines", 500)


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
