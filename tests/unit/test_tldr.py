from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.config.ready import ready_names
from tba.config.settings import load_config
from tba.config.text import parse_overrides
from tba.tasks import tldr
from tba.tasks.base import Content, Task
from tba.tasks.tldr import UNUSABLE, shorten
from tba.types import TbaError

POST = {
    "id": "t3_1",
    "subreddit": "pets",
    "title": "My cat",
    "post": "She sleeps.\n\nAll day.",
    "summary": "cat sleeps",
}


def words(content: Content) -> tuple[str, tuple[int, ...]]:
    """An encoder of one token a word."""
    text = content if isinstance(content, str) else content[-1]["content"]
    return text, tuple(range(len(text.split())))


def load(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> Task:
    path = tmp_path / "posts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tldr.Settings(data=str(path), **{"num_eval": 0, **settings}).load(words)


def test_a_plain_prompt_has_the_original_shape(tmp_path: Path) -> None:
    [problem] = load(tmp_path, [POST]).train
    assert problem.prompt.text == "SUBREDDIT: r/pets\n\nTITLE: My cat\n\nPOST: She sleeps.\n\nAll day.\n\nTL;DR:"
    assert problem.prompt.id == "t3_1"
    assert problem.demonstration == " cat sleeps"
    assert problem.columns["summary"] == "cat sleeps"


def test_a_chat_prompt_is_one_message_and_its_summary_starts_without_a_space(tmp_path: Path) -> None:
    [problem] = load(tmp_path, [POST], prompt_style="chat", instruction="Shorten this.").train
    [message] = problem.content
    assert message["role"] == "user"
    assert message["content"].startswith("Shorten this.\n\nSUBREDDIT: r/pets")
    assert "TL;DR:" not in message["content"]
    assert problem.demonstration == "cat sleeps"


def test_what_a_post_has_not_is_left_out(tmp_path: Path) -> None:
    [problem] = load(tmp_path, [{"post": "Hello.", "title": None, "subreddit": ""}]).train
    assert problem.prompt.text == "POST: Hello.\n\nTL;DR:"
    assert problem.demonstration is None


def test_prompts_of_the_hub_are_the_same_problems(tmp_path: Path) -> None:
    [ours] = load(tmp_path, [POST]).train
    [theirs] = load(tmp_path, [{"prompt": ours.prompt.text, "completion": " cat sleeps"}]).train
    assert theirs.content == ours.content
    assert theirs.demonstration == ours.demonstration


def test_empty_posts_and_posts_that_cannot_be_cut_are_counted(tmp_path: Path) -> None:
    rows = [POST, {"post": "  "}, {"post": None}, {"post": "word " * 50}, POST | {"id": "t3_2"}]
    task = load(tmp_path, rows, max_prompt_tokens=20, num_eval=1)
    assert [p.prompt.id for p in (*task.train, *task.held_out)] == ["posts-0", "posts-4"]
    assert task.skipped == {UNUSABLE: 3}


def test_held_out_posts_come_from_their_own_file(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(POST | {"post": "Other."}) + "\n" + json.dumps({"post": ""}) + "\n")
    task = load(tmp_path, [POST], eval_data=str(other), num_eval=5)
    assert len(task.train) == 1
    assert ["Other." in p.prompt.text for p in task.held_out] == [True]
    assert task.train[0].prompt.id != task.held_out[0].prompt.id
    assert task.skipped == {UNUSABLE: 1}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"text": "x"}, "neither a column 'post' nor a 'prompt'"),
        ({"prompt": [{"role": "user", "content": "x"}]}, "neither a column 'post'"),
        ({"prompt": "Summarise: x"}, "POST: … TL;DR:"),
    ],
)
def test_rows_that_are_no_posts_are_refused_in_one_line(tmp_path: Path, row: dict[str, Any], named: str) -> None:
    with pytest.raises(TbaError, match=r"posts\.jsonl, row 2") as error:
        load(tmp_path, [POST, row])
    assert named in str(error.value)


def test_data_that_leave_no_post_to_train_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=r"task\.num_eval = 1 leaves none of the 1 usable posts"):
        load(tmp_path, [POST, {"post": ""}], num_eval=1)


def test_a_long_post_ends_with_a_paragraph_if_it_can() -> None:
    post = "One. Two.\nThree. Four.\nFive."
    assert shorten(post, lambda text: len(text) <= 24) == "One. Two.\nThree. Four."
    assert shorten(post, lambda text: len(text) <= 8) == "One."
    assert shorten(post, lambda text: len(text) <= 3) == ""


@given(st.text(alphabet='ab .!?\n"', max_size=60), st.integers(0, 60))
def test_what_is_kept_is_the_longest_beginning_of_its_kind_that_fits(post: str, limit: int) -> None:
    kept = shorten(post, lambda text: len(text) <= limit)
    assert len(kept) <= limit
    assert post.startswith(kept)
    if kept != post:
        longer = [post[:i].rstrip() for i, letter in enumerate(post) if letter == "\n"]
        fitting = [text for text in longer if len(text) <= limit and text]
        assert not fitting or kept == max(fitting, key=len)


def test_data_given_over_a_file_stays_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "x"\n[task]\nkind = "tldr"\ndata = "a"\n[reward]\nmodel = "r"\n')
    config = load_config(path, parse_overrides(["--task.data", "b"]))
    assert config.task == tldr.Settings(data="b")


def test_the_task_needs_a_reward_or_a_judge() -> None:
    line = ["--model", "x", "--task", "tldr", "--task.data", "d"]
    with pytest.raises(TbaError, match=r"reward is missing: name a reward model with --reward\.model"):
        load_config(None, parse_overrides(line))
    assert load_config(None, parse_overrides([*line, "--reward.model", "r"])).reward.is_named
    assert not load_config(None, parse_overrides([*line, "--evaluation.gold-model", "g"])).reward.is_named


@pytest.mark.parametrize("name", [name for name in ready_names() if "tldr" in name])
def test_the_configurations_are_sound(name: str) -> None:
    config = load_config(name, {})
    assert config.task.kind == "tldr"
    assert config.evaluation.gold_model not in (None, config.reward.model)
    assert config.reward.no_eos_score == -1.0
