"""What the lab says, word by word."""

from dataclasses import replace

from corollout.lab import KINDS, Interval, Row, advise
from tests.support.lab_rows import BASE, FACTS, NOTHING, row

STATE = "0.31 nats a token, 60 % of the probability in 8 sequences, 41 % of contexts with equal rewards: "


def advice(*rows: Row) -> str:
    text = advise(FACTS, [BASE, *rows], "rloo-8").replace("\u00a0", " ")
    assert text.startswith(STATE)
    return text.removeprefix(STATE)


def test_what_is_best_with_contexts_drawn_anew_is_said():
    few = row("set-2", 0.6, 0.6, 0.6, training=dict.fromkeys(KINDS, Interval(0.3, 0.2, 0.4)))
    many = row("set-8", 0.2, 0.2, 0.2, training=dict.fromkeys(KINDS, Interval(0.5, 0.4, 0.6)))
    base = replace(BASE, training=dict.fromkeys(KINDS, Interval(1.0, 1.0, 1.0)))
    words = advise(FACTS, [base, few, many], "rloo-8").replace("\u00a0", " ")
    assert "set-8 wins per token" in words
    assert (
        "With contexts drawn anew, as in training, the least variance × cost has set-2 per token (0.3, 0.2–0.4), "
        "per reward call (0.3, 0.2–0.4) and per second (0.3, 0.2–0.4)." in words
    )
    assert "drawn anew" not in advise(FACTS, [BASE, row("set-8", 0.2, 0.2, 0.2)], "rloo-8")


def test_one_that_wins_everywhere():
    assert advice(row("set-8", 0.41, 0.5, 0.625), row("sc", 4.0, 4.0, 4.0)) == (
        "set-8 wins per token (variance × tokens 0.41 of rloo-8's, 95 % interval 0.33–0.49), "
        "per reward call (0.5, 0.4–0.6) and per second (0.62, 0.5–0.75)."
    )


def test_nothing_is_better_than_the_base():
    assert advice(row("sc", 4.0, 4.0, 4.0)) == "rloo-8 wins per token, per reward call and per second."
    assert advice(row("sc", 1.1, 1.1, 1.1)) == (
        "rloo-8 wins per token, per reward call and per second, but is not told apart from sc."
    )


def test_each_cost_has_a_winner_of_its_own():
    found = advice(row("set-8", 0.4, 2.0, 0.9), row("set-16", 0.5, 2.0, 3.0), row("pairs", 3.0, 0.5, 0.3))
    assert found == (
        "set-8 wins per token (variance × tokens 0.4 of rloo-8's, 95 % interval 0.32–0.48), but is not told apart from "
        "set-16; pairs wins per reward call (0.5, 0.4–0.6) and per second (0.3, 0.24–0.36)."
    )


def test_what_is_not_told_apart_is_said_where_it_differs():
    found = advice(row("set-8", 0.4, 0.4, 0.4), row("set-16", 0.5, 2.0, 3.0))
    assert found == (
        "set-8 wins per token (variance × tokens 0.4 of rloo-8's, 95 % interval 0.32–0.48; not told apart from set-16),"
        " per reward call (0.4, 0.32–0.48) and per second (0.4, 0.32–0.48)."
    )
    many = [row(f"set-{size}", 0.5, 0.5, 0.5) for size in range(3, 9)]
    assert "but is not told apart from set-3, set-4, set-5 and 3 others." in advice(row("set-2", 0.4, 0.4, 0.4), *many)


def test_biased_ones_do_not_win_and_are_named():
    seen = row("rl-beam-8", 0.01, 0.01, 0.01, biased=True, bias=Interval(0.87, 0.6, 1.13))
    known = row("grpo-8", 0.02, 0.02, 0.02, biased_by_design=True)
    assert advice(seen, known) == (
        "rloo-8 wins per token, per reward call and per second. Left out as biased: rl-beam-8 (squared bias 87 % of "
        "the squared gradient, 60 % to 113 %) and grpo-8 (by its definition)."
    )


def test_no_variance_and_no_reference():
    still = replace(BASE, variance=NOTHING, products=dict.fromkeys(KINDS, NOTHING), bias=None)
    found = advise(FACTS, [still], "rloo-8")
    assert found.endswith(
        "estimates do not differ, so there is nothing to choose by. The reference is too noisy to tell a bias: it "
        "needs more estimates."
    )
    lost = row("set-8", 0.1, 0.1, 0.1, relative=dict.fromkeys(KINDS))
    assert "rloo-8 wins" in advice(lost)
