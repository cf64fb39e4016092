"""GSM8K: grade-school problems whose worked answer ends in `#### n`."""

from __future__ import annotations

import re

from tba.config_tasks import Gsm8kTaskConfig
from tba.rewards.answer import extract, is_number
from tba.tasks import maths
from tba.tasks.base import Encode, Task
from tba.tasks.rows import Row

_CALCULATION = re.compile(r"<<[^<>]*>>")


def load(config: Gsm8kTaskConfig, encode: Encode) -> Task:
    return maths.load(config, encode, DIALECT)


def read(row: Row) -> maths.Exercise:
    question, worked = maths.required_text(row, "question"), maths.required_text(row, "answer")
    # Calculator annotations are for a tool that no model here has.
    solution = _CALCULATION.sub("", worked)
    answer = extract(solution) if "####" in solution else solution
    if answer is None or not is_number(answer):
        raise maths.UnusableRowError("no number after '####' in column 'answer'")
    return maths.Exercise(question, solution, answer)


DIALECT = maths.Dialect(read, "Think step by step, then end with a last line of the form: #### number")
