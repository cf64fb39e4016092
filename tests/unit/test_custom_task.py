from __future__ import annotations

import csv
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tba.config.settings import load_config, to_toml
from tba.config.text import parse_overrides
from tba.tasks import custom
from tba.tasks.read_data import read_rows, source_name
from tba.types import TbaError

ROWS = [{"prompt": f"{n} plus {n}?", "answer": str(2 * n), "level": n} for n in range(5)]


def encode(content):
    text = content if isinstance(content, str) else "|".join(f"{m['role']}:{m['content']}" for m in content)
    return text, tuple(text.encode())


def load_rows(tmp_path, rows, **settings):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return custom.Settings(data=str(path), **{"num_eval": 0, **settings}).load(encode)


def write(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return str(path)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "JSONL"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    rows = read_rows(write(tmp_path / f"sums.{suffix}", ROWS), "train")
    assert [str(row["level"]) for row in rows] == list("01234")  # csv knows only strings
    assert [(row["prompt"], row["answer"]) for row in rows] == [(row["prompt"], row["answer"]) for row in ROWS]


def test_json_lines_are_read_under_either_suffix_with_any_line_end(tmp_path):
    path = tmp_path / "sums.json"
    path.write_bytes("\ufeff".encode() + '{"prompt": "a\u2028b"}\r\n{"prompt": "c"}'.encode())
    assert read_rows(str(path), "train") == [{"prompt": "a\u2028b"}, {"prompt": "c"}]


def test_saved_datasets_and_folders_are_read(tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(tmp_path / "both")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "train.parquet", ROWS)
    assert read_rows(str(tmp_path / "one"), "train") == ROWS
    assert read_rows(str(tmp_path / "both"), "test") == ROWS[:1]
    assert read_rows(str(tmp_path / "folder"), "train") == ROWS
    with pytest.raises(TbaError, match=r"no split 'dev': it has train, test"):
        read_rows(str(tmp_path / "both"), "dev")


def test_dataset_ids_go_to_the_hub(monkeypatch):
    asked = []

    def load_dataset(name, subset, split):
        asked.append((name, subset, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_rows("openai/gsm8k:main", "test") == ROWS
    assert read_rows("squad", "train") == ROWS
    assert asked == [("openai/gsm8k", "main", "test"), ("squad", None, "train")]
    assert source_name("openai/gsm8k:main") == "gsm8k"


def test_an_unreachable_hub_is_one_clear_line(monkeypatch):
    def load_dataset(*arguments, **keywords):
        raise ConnectionError("Couldn't reach the Hub\nwith details")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        TbaError, match=r"cannot load dataset 'me/mine', split 'train': Couldn't reach.*network"
    ) as caught:
        read_rows("me/mine", "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", "", "has no rows"),
        ("empty.json", "[]", "has no rows"),
        ("empty.csv", "prompt\n", "has no rows"),
        ("bad.jsonl", '{"prompt": "a"}\n\n{"prompt": }\n', "bad.jsonl, line 3: not valid JSON: Expecting value"),
        ("bad.json", '[\n{"prompt": "a"},\n{]', "bad.json, line 3: not valid JSON"),
        ("list.jsonl", '"text"\n', "list.jsonl, line 1: a row cannot be of type str"),
        ("list.json", '[{"prompt": "a"}, 5]', "list.json, row 2: a row cannot be of type int"),
        ("bad.csv", "prompt,answer\na,1\nb,2,3\n", "bad.csv, line 3: not 2 fields"),
        ("short.csv", "prompt,answer\na\n", "short.csv, line 2: not 2 fields"),
        ("bad.parquet", "no parquet", "bad.parquet is not a readable parquet file"),
        ("notes.txt", "hello", "unknown suffix '.txt': use one of .jsonl, .json, .csv, .parquet"),
    ],
)
def test_faults_name_the_file_and_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(TbaError) as caught:
        read_rows(str(tmp_path / name), "train")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_undecodable_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(TbaError, match=r"no data file at .*missing\.jsonl"):
        read_rows(str(tmp_path / "missing.jsonl"), "train")
    with pytest.raises(TbaError, match=r"task.data .*missing. is not there"):
        read_rows(str(tmp_path / "missing"), "train")
    (tmp_path / "latin.csv").write_bytes("prompt\ncafé\n".encode("latin-1"))
    with pytest.raises(TbaError, match=r"latin\.csv is not UTF-8 text"):
        read_rows(str(tmp_path / "latin.csv"), "train")


def test_rows_become_problems(tmp_path):
    task = load_rows(tmp_path, ROWS)
    assert (task.name, task.default_reward, len(task.train), task.held_out) == ("sums", None, 5, [])
    problem = task.train[3]
    assert (problem.prompt.id, problem.prompt.text) == ("sums-3", "3 plus 3?")
    assert problem.prompt.tokens == tuple(b"3 plus 3?")
    assert problem.columns == {"answer": "6", "level": 3}
    assert not problem.conversational


def test_messages_become_chat_prompts(tmp_path):
    messages = [{"role": "user", "content": "hi", "name": None}]
    (problem,) = load_rows(tmp_path, [{"chat": messages, "prompt": "kept"}], prompt_column="chat").train
    assert problem.prompt.text == "user:hi"
    assert problem.conversational
    assert problem.columns == {"prompt": "kept"}


def test_a_system_prompt_makes_every_prompt_a_chat(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}]
    task = load_rows(tmp_path, rows, system_prompt="Be brief.")
    assert [p.prompt.text for p in task.train] == ["system:Be brief.|user:a", "system:Be brief.|user:b"]
    assert all(p.conversational for p in task.train)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "a", "answer": 1},
            "row 2 has no column 'prompt': set task.prompt_column to one of question, answer",
        ),
        ({"prompt": 5}, "row 2, column 'prompt' is of type int"),
        ({"prompt": None}, "row 2, column 'prompt' is empty"),
        ({"prompt": " "}, "row 2, column 'prompt' is empty"),
        ({"prompt": []}, "row 2, column 'prompt' is empty"),
        ({"prompt": ["hi"]}, "column 'prompt', message 1 is not a chat message"),
        ({"prompt": [{"role": "user"}]}, "column 'prompt', message 1 is not a chat message"),
        ({"prompt": [{"role": "user", "content": ["hi"]}]}, "column 'prompt', message 1 is not a chat message"),
    ],
)
def test_a_bad_prompt_names_its_row(tmp_path, row, message):
    with pytest.raises(TbaError) as caught:
        load_rows(tmp_path, [{"prompt": "fine"}, row])
    assert f"{tmp_path / 'sums.jsonl'}, " in str(caught.value)
    assert message in str(caught.value)


def ids(problems):
    return [problem.prompt.id for problem in problems]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(["x", "y"], ["x", "y"]), (["x", "x"], ["sums-0", "sums-1"]), ([1, 2], ["sums-0", "sums-1"])],
)
def test_ids_are_used_where_they_are_distinct_strings(tmp_path, given, expected):
    task = load_rows(tmp_path, [{"prompt": "a", "id": id} for id in given])
    assert ids(task.train) == expected
    assert [problem.columns["id"] for problem in task.train] == given


def test_the_last_rows_are_held_out(tmp_path):
    task = load_rows(tmp_path, ROWS, num_eval=2)
    assert ids(task.train) == ["sums-0", "sums-1", "sums-2"]
    assert ids(task.held_out) == ["sums-3", "sums-4"]


def test_training_rows_must_remain(tmp_path):
    with pytest.raises(TbaError, match=r"task\.num_eval = 5 leaves none of the 5 rows"):
        load_rows(tmp_path, ROWS, num_eval=5)


def test_eval_data_is_held_out_whole_under_its_own_ids(tmp_path):
    (tmp_path / "other").mkdir()
    same_name = write(tmp_path / "other" / "sums.jsonl", ROWS[:2])
    task = load_rows(tmp_path, ROWS, num_eval=1, eval_data=same_name)
    assert len(task.train) == 5
    assert ids(task.held_out) == ["sums-eval-0", "sums-eval-1"]
    same_ids = write(tmp_path / "ids.jsonl", [{"prompt": "a", "id": "x"}])
    task = load_rows(tmp_path, [{"prompt": "b", "id": "x"}], eval_data=same_ids)
    assert ids(task.train) == ["x"]
    assert ids(task.held_out) == ["ids-eval-0"]


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_a_prompt_that_holds_its_own_answer_is_refused(tmp_path, system_prompt):
    question = {"role": "user", "content": "What is the capital of Italy?"}
    answer = {"role": "assistant", "content": "Rome"}
    load_rows(tmp_path, [{"prompt": [question, answer, question]}], system_prompt=system_prompt)
    rows = [{"prompt": [question]}, {"prompt": [question, answer]}]
    with pytest.raises(TbaError, match=r"row 2, column 'prompt' ends in a turn of the assistant.*leave that"):
        load_rows(tmp_path, rows, system_prompt=system_prompt)


# ---------------------------------------------------------------------------------------------------------------------
# Columns that people bring
# ---------------------------------------------------------------------------------------------------------------------

ASKED = {"role": "user", "content": "What is the capital of Italy?"}
ANSWERED = {"role": "assistant", "content": "Rome"}


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ({"prompt": "2+2=", "answer": "4"}, None),
        ({"prompt": "2+2=", "solution": "4"}, "answers come from the column `solution`"),
        ({"prompt": "2+2=", "ground_truth": "4"}, "answers come from the column `ground_truth`"),
        (
            {"prompt": "2+2=", "reward_model": {"style": "rule", "ground_truth": "4"}},
            "answers come from the column `reward_model.ground_truth`",
        ),
        ({"prompt": "2+2=", "label": "4"}, "answers come from the column `label`"),
        ({"question": "2+2=", "answer": "4"}, "prompts come from the column `question`"),
        (
            {"question": "2+2=", "solution": "4", "label": "5"},
            "prompts come from the column `question`, answers from the column `solution`",
        ),
        ({"prompt": "2+2=", "question": "other", "answer": "4", "solution": "other"}, None),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, dict) else "",
)
def test_columns_are_known_by_several_names(tmp_path, row, note):
    task = load_rows(tmp_path, [row])
    (problem,) = task.train
    assert problem.prompt.text == "2+2="
    assert problem.columns["answer"] == "4"
    assert list(task.notes) == ([f"{tmp_path / 'sums.jsonl'}: {note}"] if note else [])


def test_a_conversation_is_asked_without_its_last_answer(tmp_path):
    rows = [{"messages": [ASKED, ANSWERED]}, {"messages": [ASKED, ANSWERED, ASKED]}, {"messages": [ASKED]}]
    task = load_rows(tmp_path, rows)
    assert [len(problem.content) for problem in task.train] == [1, 3, 1]
    assert "Rome" not in task.train[0].prompt.text
    assert [problem.demonstration for problem in task.train] == ["Rome", None, None]
    assert [problem.columns.get("answer") for problem in task.train] == ["Rome", None, None]
    assert "a last turn of the assistant is cut off" in task.notes[0]


def test_an_answer_of_its_own_goes_before_the_last_turn(tmp_path):
    for column in ("answer", "solution"):
        (problem,) = load_rows(tmp_path, [{"messages": [ASKED, ANSWERED], column: "Roma"}]).train
        assert (problem.columns["answer"], problem.demonstration) == ("Roma", "Rome")


def test_a_conversation_needs_more_than_an_answer(tmp_path):
    with pytest.raises(TbaError, match=r"row 1, column 'messages' is empty"):
        load_rows(tmp_path, [{"messages": [ANSWERED]}])


def test_columns_can_be_mapped(tmp_path):
    rows = [{"problem": "2+2=", "meta": {"final": "4"}, "answer": "four"}]
    settings = {"prompt_column": "problem", "columns": {"answer": "meta.final", "level": "meta"}}
    task = load_rows(tmp_path, rows, **settings)
    (problem,) = task.train
    assert problem.prompt.text == "2+2="
    assert problem.columns["answer"] == "4"
    assert problem.columns["level"] == {"final": "4"}
    assert task.notes == (), "nothing was guessed"
    with pytest.raises(TbaError, match=r"row 2 has no column 'meta\.final', which task\.columns names for 'answer'"):
        load_rows(tmp_path, [*rows, {"problem": "3+3=", "answer": "6"}], **settings)


def test_columns_are_mapped_on_the_command_line_and_kept_in_toml(tmp_path):
    line = ["--task.data", "x.jsonl", "--task.columns.answer", "meta.final", "--model", "m", "--reward", "a:b"]
    config = load_config(None, parse_overrides(line))
    assert config.task.columns == {"answer": "meta.final"}
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "config.toml", {}) == config
    with pytest.raises(TbaError, match=r"task\.prompt_column"):
        load_config(None, parse_overrides([*line, "--task.columns.prompt", "problem"]))


@pytest.mark.parametrize(("num_rows", "num_eval"), [(2, 1), (12, 1), (50, 5), (639, 63), (640, 64), (5000, 64)])
def test_a_tenth_of_the_rows_is_held_out_unless_said_otherwise(tmp_path, num_rows, num_eval):
    task = load_rows(tmp_path, [{"prompt": "a"}] * num_rows, num_eval=None)
    assert (len(task.train), len(task.held_out)) == (num_rows - num_eval, num_eval)
