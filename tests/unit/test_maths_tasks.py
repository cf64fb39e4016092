"""GSM8K, MATH and addition: rows in their original formats, prompts, shots, and what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tba.build.tasks import build_scorer
from tba.config.settings import Config, load_config
from tba.rewards.functions import resolve
from tba.tasks.base import Content, Task
from tba.types import TbaError

GSM8K = [
    {
        "question": f"Tom has {n} coins and finds 2. How many?",
        "answer": f"{n}+2=<<{n}+2={n + 2}>>{n + 2}.\n#### {n + 2}",
    }
    for n in range(1000, 1006)
]
MATH = [
    {
        "problem": f"What is $2\\cdot {n}$?",
        "solution": f"It is $\\boxed{{{2 * n}}}$.",
        "level": "Level 3",
        "type": "Algebra",
    }
    for n in range(4)
]


def encode(content: Content) -> tuple[str, tuple[int, ...]]:
    return (content if isinstance(content, str) else json.dumps(content)), (1,)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(kind: str, **settings: Any) -> Config:
    return load_config(None, {"model": "m", "task": {"kind": kind, **settings}})


def load(kind: str, **settings: Any) -> Task:
    return config(kind, **settings).task.load(encode)


def questions(task: Task, part: str = "train") -> list[str]:
    return [problem.content[-1]["content"] for problem in getattr(task, part)]


def test_gsm8k_asks_for_the_mark_and_keeps_the_answer(tmp_path: Path) -> None:
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", GSM8K), num_eval=2)
    assert (len(task.train), len(task.held_out)) == (4, 2)
    problem = task.train[0]
    assert problem.content[-1]["role"] == "user"
    assert problem.content[-1]["content"].startswith(GSM8K[0]["question"])
    assert "####" in problem.content[-1]["content"]
    assert problem.columns["answer"] == "1002"
    assert "<<" not in problem.columns["solution"]


def test_the_solutions_are_demonstrations_and_earn_the_reward(tmp_path: Path) -> None:
    for kind, rows in (("gsm8k", GSM8K), ("math", MATH)):
        task = load(kind, data=write(tmp_path / f"{kind}.jsonl", rows), num_eval=1)
        reward = resolve(task.default_reward or "")
        shown = [problem.demonstration for problem in task.train]
        assert shown == [problem.columns["solution"] for problem in task.train]
        rewards = reward(completions=shown, answer=[problem.columns["answer"] for problem in task.train])
        assert rewards == [1.0] * len(shown)


def test_only_problems_with_short_solutions_are_trained_on(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": "so\n" * n + "#### 1"} for n in (4, 1, 0, 3, 2, 5)]
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", rows), num_eval=2, max_solution_lines=2)
    assert [question[:2] for question in questions(task)] == ["q1", "q0"]
    assert len(task.held_out) == 2, "held-out problems are not chosen"
    assert task.skipped == {"solution too long": 2}
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", rows), num_eval=2, num_problems=2, num_shots=1)
    assert [question[:2] for question in questions(task)] == ["q1", "q0"], "the first behind the shot"
    with pytest.raises(TbaError, match="leaves none of 2"):
        load("gsm8k", data=write(tmp_path / "b.jsonl", rows[3:]), num_eval=1, max_solution_lines=1)


def test_a_plain_prompt_is_the_papers(tmp_path: Path) -> None:
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", GSM8K), num_eval=1, prompt_style="plain")
    assert task.train[0].content == f"[MATH TASK] Problem:\n{GSM8K[0]['question']}\n\nSolution:\n"


def test_instructions_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", MATH)
    told = load(
        "math", data=data, num_eval=1, prompt_style="plain", template="{question}|", instruction="Box it: \\boxed{}"
    )
    assert told.train[0].content == f"{MATH[0]['problem']}\n\nBox it: \\boxed{{}}|"
    silent = load("math", data=data, num_eval=1, instruction="", system_prompt="Be brief.")
    assert silent.train[0].content == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": MATH[0]["problem"]},
    ]


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_shots_come_from_rows_that_are_then_not_trained_on(tmp_path: Path, style: str) -> None:
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", GSM8K), num_eval=2, num_shots=2, prompt_style=style)
    assert len(task.train) == 2
    for problem in (*task.train, *task.held_out):
        text = problem.prompt.text
        assert all(text.count(row["question"]) == 1 for row in GSM8K[:2])
        assert "<<" not in text
        own = [row["question"] for row in GSM8K[2:] if row["question"] in text]
        assert len(own) == 1, "the shots hold no other problem"


def test_questions_that_are_held_out_are_not_trained_on(tmp_path: Path) -> None:
    train, held_out = write(tmp_path / "a.jsonl", GSM8K), write(tmp_path / "b.jsonl", GSM8K[:2])
    task = load("gsm8k", data=train, eval_data=held_out)
    assert (len(task.train), len(task.held_out)) == (4, 2)
    assert not set(questions(task)) & set(questions(task, "held_out"))
    assert task.skipped == {"held out as well": 2}
    assert not {p.prompt.id for p in task.train} & {p.prompt.id for p in task.held_out}


def test_an_evaluation_needs_no_training_rows(tmp_path: Path) -> None:
    task = load("math", eval_data=write(tmp_path / "b.jsonl", MATH))
    assert (len(task.train), len(task.held_out)) == (0, 4)


def test_levels_and_subjects_are_kept_under_one_name(tmp_path: Path) -> None:
    rows = [
        *MATH,
        {"problem": "p", "solution": "s", "answer": "x+1", "level": 5, "subject": "Geometry"},
        {"problem": "q", "answer": "7"},
    ]
    task = load("math", data=write(tmp_path / "a.jsonl", rows), num_eval=0)
    assert task.breakdown == ("level", "subject")
    assert [(p.columns.get("level"), p.columns.get("subject")) for p in task.train[3:]] == [
        ("3", "Algebra"),
        ("5", "Geometry"),
        (None, None),
    ]
    assert [p.columns["answer"] for p in task.train[3:]] == ["6", "x+1", "7"]


def test_rows_that_cannot_be_graded_are_counted_by_reason(tmp_path: Path) -> None:
    bad = [
        {"question": "q"},
        {"question": "q", "answer": "no mark"},
        {"question": "q", "answer": "#### many"},
        {"answer": "#### 1"},
    ]
    task = load("gsm8k", data=write(tmp_path / "a.jsonl", GSM8K + bad), num_eval=0)
    assert len(task.train) == len(GSM8K)
    assert sorted(task.skipped.values()) == [1, 1, 2]
    assert all("column" in why for why in task.skipped)
    unboxed = [{"problem": "p", "solution": "\\boxed{1"}, {"problem": "p", "solution": None}]
    task = load("math", data=write(tmp_path / "b.jsonl", MATH + unboxed), num_eval=0)
    assert list(task.skipped.values()) == [2]


@pytest.mark.parametrize(
    ("kind", "rows", "settings", "message"),
    [
        ("gsm8k", MATH, {}, "no row that can be graded"),
        ("math", GSM8K, {}, "'problem'"),
        ("gsm8k", GSM8K, {"num_eval": 6}, r"task\.num_eval"),
        ("gsm8k", GSM8K, {"num_eval": 2, "num_shots": 5}, r"task\.num_shots"),
    ],
)
def test_data_that_leaves_nothing_is_an_error(
    tmp_path: Path, kind: str, rows: list[dict[str, Any]], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TbaError, match=message):
        load(kind, data=write(tmp_path / "a.jsonl", rows), **settings)


def test_no_data_at_all_is_an_error() -> None:
    with pytest.raises(TbaError, match=r"task\.data is missing"):
        load("gsm8k")


def test_a_template_needs_a_place_for_the_question() -> None:
    with pytest.raises(TbaError, match=r"\{question\}"):
        config("gsm8k", data="a", template="Solve this:")


def test_data_given_to_a_named_task_stays_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('model = "m"\n[task]\nkind = "gsm8k"\ndata = "old"\nnum_shots = 3\n')
    task = load_config(path, {"task": {"data": "new"}}).task
    assert (task.kind, task.data, task.num_shots) == ("gsm8k", "new", 3)


def test_the_fallback_is_counted_beside_the_reward(tmp_path: Path) -> None:
    settings = config("gsm8k", data=write(tmp_path / "a.jsonl", GSM8K), num_eval=1, last_number=True)
    task = settings.task.load(encode)
    with build_scorer(settings, task) as scorer:
        assert scorer.names == ("final_answer_or_last_number", "by_last_number")
        problem = task.train[0]
        request = problem.request([])
        asked = type(request)(
            request.prompt_id, request.prompt, ("It is 1002.", "#### 1002", "#### 7"), ((1,),) * 3, (True,) * 3,
            request.columns, conversational=True,
        )  # fmt: skip
        (scores,) = scorer.score([asked])
    assert scores.rewards == (1.0, 1.0, 0.0), "the count weighs nothing"
    assert [parts[1] for parts in scores.parts] == [1.0, 0.0, 0.0]


def test_additions_are_asked_and_held_out_by_pair() -> None:
    task = load("addition", max_digits=2, num_train=400, num_eval=60)
    assert (len(task.train), len(task.held_out)) == (400, 60)
    pairs = [
        {frozenset(p.prompt.id.removeprefix("addition-").split("+")) for p in part}
        for part in (task.train, task.held_out)
    ]
    assert not pairs[0] & pairs[1]
    assert {p.columns["digits"] for p in task.train} == {"1+1", "1+2", "2+2"}
    for problem in task.train[:20]:
        left, right = problem.prompt.id.removeprefix("addition-").split("+")
        assert problem.content[0]["content"].startswith(f"What is {left} + {right}?")
        assert problem.columns["answer"] == str(int(left) + int(right))


def test_additions_repeat_for_a_seed_and_differ_between_seeds() -> None:
    first, again, other = (questions(load("addition", num_train=50, num_eval=5, seed=s)) for s in (1, 1, 2))
    assert first == again != other


def test_more_additions_than_there_are_is_an_error() -> None:
    with pytest.raises(TbaError, match=r"task\.max_digits"):
        load("addition", max_digits=1, num_train=500, num_eval=2)
