from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.rewards.answer import (
    MAX_ANSWER_CHARS,
    by_last_number,
    extract,
    final_answer,
    final_answer_or_last_number,
    last_number,
    last_number_in,
)


def grade(response, truth):
    return final_answer(completions=[response], answer=[truth])[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2+2=4\n#### 4", "4"),
        ("#### 4\nbecause", "4"),
        ("####\n 4 ", "4"),
        ("#### 3\nno:\n#### 4", "4"),
        (r"so \boxed{4}.", "4"),
        (r"\boxed{3} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed {4}", "4"),
        (r"#### \boxed{4}", "4"),
        (r"\boxed{3}, that is #### 4", "4"),
        (r"#### 3 then \boxed{4", None),
        ("####", None),
        (r"\boxed{}", None),
        ("the answer is 4", None),
        ("", None),
    ],
)
def test_extracts_the_last_marked_answer(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("1,234", "1234"),
        ("17.0", "17"),
        ("$18", "18"),
        (r"\$18.", "18"),
        ("-5", "−5"),
        (".5", "0.50"),
        ("0.33333333", "0.333333"),
        ("17", 17),
        ("17", 17.0),
        ("9" * 60, "9" * 60 + ".0"),
        ("Paris", "Paris"),
        (r"\text{Paris}", "Paris"),
        ("42", "6 * 7 = 42\n#### 42"),
        ("42", r"It is \boxed{42}."),
        (r"\frac{1}{2}", "0.5"),
        (r"\sqrt{12}", r"2\sqrt{3}"),
        ("1+x", "x+1"),
        ("x = 5", "5"),
        (r"90^\circ", "90"),
        ("18 dollars", "18"),
        ("$1,200 per month.", "1200"),
    ],
)
def test_right_answers_earn_the_reward(answer, truth):
    assert grade(f"#### {answer}", truth) == 1.0
    assert grade(rf"\boxed{{{answer}}}", truth) == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("1,2", "12"),
        ("1 2", "12"),
        ("(1,234)", "1234"),
        ("12,34", "1234"),
        ("9" * 60, "9" * 59 + "8"),
        ("41, 42", "42"),
        ("42 or 43", "42"),
        ("42 thousand", "42"),
        ("42 and 43 apples", "42"),
        ("the answer is 42", "42"),
        ("7 dollars", "42"),
        ("London", "Paris"),
        (r"\frac{1}{3}", "0.5"),
        ("(((", "4"),
        ("9**9**9", "42"),
        ("9^{9^{9}}", "42"),
        ("10^{99999999999}", "42"),
        ('__import__("os").system("false")', "42"),
        ("1+" * MAX_ANSWER_CHARS + "1", "42"),
    ],
)
def test_wrong_answers_do_not_earn_the_reward(answer, truth):
    assert grade(f"#### {answer}", truth) == 0.0


@pytest.mark.parametrize("truth", [None, "", "  ", "####", r"\boxed{", "$", ["42"]])
def test_not_applicable_without_a_truth(truth):
    assert grade("#### 42", truth) is None
    assert grade("no answer", truth) is None


def test_a_response_without_an_answer_is_wrong():
    assert grade("I do not know 42", "42") == 0.0


@given(st.integers(), st.integers())
def test_numbers_are_graded_by_value(number, other):
    assert grade(f"#### {number:,}", str(number)) == 1.0
    assert grade(f"#### {number}", f"so\n#### {other:,}.0") == float(number == other)


@given(st.text())
def test_grading_never_raises_whatever_the_text(text):
    assert grade(text, "42") in (0.0, 1.0)


def test_reads_the_last_assistant_message_of_a_chat():
    chat = [
        {"role": "assistant", "content": "#### 1"},
        {"role": "user", "content": "#### 2"},
        {"role": "assistant", "content": "#### 3"},
        {"role": "tool", "content": "#### 4"},
    ]
    assert final_answer(completions=[chat, chat, []], answer=["3", "4", "3"], level=[1, 1, 1]) == [1.0, 0.0, 0.0]


def test_plain_numbers_do_not_load_sympy():
    code = (
        "import sys; from tba.rewards.answer import final_answer;"
        "assert final_answer(completions=['#### 1,234', '#### 5'], answer=['1234', '#### 6']) == [1.0, 0.0];"
        "assert not {'sympy', 'math_verify', 'torch'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_mathematics_is_graded_in_any_thread_without_noise():
    # math-verify's own time limits would raise here: signals belong to the main thread.
    code = (
        "import threading; from tba.rewards.answer import final_answer; seen = [];"
        "run = lambda: seen.extend(final_answer(completions=[r'\\boxed{\\frac{4}{8}}'], answer=['0.5']));"
        "t = threading.Thread(target=run); t.start(); t.join(); assert seen == [1.0], seen"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("47 + 38 = 85", "85"),
        ("The answer is 1,234.", "1234"),
        ("it is -5", "-5"),
        ("10-3", "3"),
        ("41,42", "42"),
        ("3.50 dollars", "3.5"),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text_is_found(text, number):
    found = last_number_in(text)
    assert (found is None) == (number is None)
    if number is not None:
        assert grade(f"#### {found}", number) == 1.0


def test_the_last_number_counts_only_where_no_answer_is_marked_and_is_counted_apart():
    texts = ["so 42", "42\n#### 41", "#### 42 of 50", "no number", "41\n\\boxed{42}", "42 #### "]
    truths = ["42"] * len(texts)
    assert final_answer_or_last_number(texts, truths) == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert by_last_number(texts, truths) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert final_answer(texts, truths) == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_without_a_truth_neither_the_grade_nor_the_count_applies():
    assert final_answer_or_last_number(["42"], [None]) == by_last_number(["42"], [None]) == [None]


def test_a_short_answer_that_was_cut_off_is_wrong():
    assert last_number(["47 + 38 = 85"] * 2, ["85"] * 2, finished=[True, False]) == [1.0, 0.0]


def test_words_after_a_number_do_not_load_sympy():
    code = (
        "import sys; from tba.rewards.answer import final_answer;"
        "assert final_answer(completions=['#### 18 dollars', '#### it is 18'], answer=['18', '18']) == [1.0, 0.0];"
        "assert not {'sympy', 'math_verify'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
