"""The Scorer against reward functions that hang, die, raise and lie. Pipes and exits are waited for, never slept on."""

from __future__ import annotations

import math
import multiprocessing
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tba.rewards.functions import RewardFactory, resolve
from tba.rewards.scorer import GROUPS_AT_ONCE, Scorer, ScoreRequest
from tba.testing import score_now
from tba.types import TbaError

REWARDS = Path(__file__).resolve().parents[1] / "rewards_for_tests.py"

LIMIT = 2
"""Seconds that a test waits for what hangs. A function that does not hang is far quicker, on a busy machine too."""


def spec(name):
    return f"{REWARDS}:{name}"


def request(id="p", completions=("a", "bb", "ccc"), act="return"):
    count = len(completions)
    return ScoreRequest(id, "question", tuple(completions), ((1,),) * count, (True,) * count, {"act": act}, False)


def group_scores(asked, names=("act",), weights=()):
    """Scores without a process."""
    return score_now({name: resolve(spec(name)) for name in names}, asked, weights)


@pytest.fixture(scope="module")
def scorer():
    with Scorer([spec("act")], [1.0], timeout_seconds=LIMIT) as scorer:
        yield scorer


@pytest.mark.parametrize("act", ["return", "print", "scalars", "array", "interrupt"])
def test_values_of_any_kind_of_number(scorer, act):
    (scores,) = scorer.score([request(act=act)])
    expected = {"print": (1.0, 1.0, 1.0), "array": (0.0, 1.0, 2.0)}.get(act, (1.0, 2.0, 3.0))
    assert scores.rewards == expected
    assert scores.parts == tuple((value,) for value in expected)
    assert scores.failures == ()
    assert {type(value) for value in scores.rewards} == {float}


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        ("hang", "timeout", f"took more than {LIMIT} s"),
        ("hang_with_lock_held", "timeout", f"took more than {LIMIT} s"),
        ("exit", "died", "ended with exit code 3"),
        ("segfault", "died", "was killed by SIGSEGV"),
        ("sys_exit", "died", "ended with exit code 4"),
        ("raise", "raised", "ValueError: no reward (rewards_for_tests.py, line"),
        ("short", "wrong_length", "returned 1 value for 3 completions"),
        ("number", "wrong_length", "returned float, not a list of 3 numbers"),
        ("nothing", "wrong_length", "returned NoneType, not a list of 3 numbers"),
    ],
)
def test_a_failed_group_is_dropped_and_the_rest_of_its_batch_is_scored(scorer, act, kind, message):
    before, failed, after = scorer.score([request("first"), request("second", act=act), request("third")])
    assert before.rewards == after.rewards == (1.0, 2.0, 3.0)
    assert before.failures == after.failures == ()
    assert failed.rewards == (None, None, None)
    assert all(math.isnan(value) for part in failed.parts for value in part)
    (failure,) = failed.failures
    assert (failure.prompt_id, failure.function, failure.kind) == ("second", "act", kind)
    assert message in failure.message
    assert "\n" not in failure.message


@pytest.mark.parametrize(("act", "shown"), [("nan", "nan"), ("inf", "inf"), ("text", "'1'")])
def test_a_value_that_is_no_finite_number_drops_only_its_completion(act, shown):
    scores = group_scores(request(act=act))
    assert scores.rewards == (None, 2.0, 3.0)
    assert math.isnan(scores.parts[0][0])
    (failure,) = scores.failures
    assert failure.kind == "not_finite"
    assert f"gave {shown} for completion 0" in failure.message


def test_none_from_all_functions_drops_without_a_failure():
    scores = group_scores(request(act="none"))
    assert scores.rewards == (None, None, None)
    assert scores.failures == ()


def test_none_from_one_function_adds_nothing():
    scores = group_scores(request(act="none_first"), ("act", "length"), (10.0, 1.0))
    assert scores.rewards == (1.0, 22.0, 33.0)
    assert math.isnan(scores.parts[0][0])
    assert scores.parts[1:] == ((2.0, 2.0), (3.0, 3.0))
    assert scores.failures == ()


def test_one_failing_function_drops_what_the_others_scored():
    scores = group_scores(request(act="raise"), ("act", "length"))
    assert scores.rewards == (None, None, None)
    assert [part[1] for part in scores.parts] == [1.0, 2.0, 3.0]


def test_a_function_cannot_edit_what_the_next_one_sees():
    assert group_scores(request(act="edit"), ("act", "length")).rewards == (2.0, 3.0, 4.0)


def test_a_sum_that_overflows_is_a_failure():
    scores = group_scores(request(act="huge"), ("act", "length"), (10.0, 1.0))
    assert scores.rewards == (None, None, None)
    assert [failure.kind for failure in scores.failures] == ["not_finite"]


def test_an_empty_group_has_empty_scores():
    scores = group_scores(request(completions=()), ("length",))
    assert (scores.rewards, scores.parts, scores.failures) == ((), (), ())


def test_a_conversational_request_follows_the_convention():
    columns = {"level": 7, "completions": "a column cannot take the place of the real ones"}
    asked = ScoreRequest("p", "question", ("a", "bb"), ((1,), (2, 3)), (True, False), columns, conversational=True)
    scores = group_scores(asked, ("echo",))
    assert scores.failures == ()
    assert scores.rewards == (1.0, 2.0)


def test_a_factory_makes_its_reward_in_the_process():
    with Scorer([RewardFactory(spec("Weighted"), {"weight": 5.0})], [], timeout_seconds=30) as scorer:
        assert scorer.names == ("Weighted",)
        assert scorer.score([request(completions=("a", "bb"))])[0].rewards == (5.0, 10.0)


def test_several_weighted_functions_and_their_names():
    functions = [spec(name) for name in ("length", "asynchronous", "doubled", "length", "tripled")]
    with Scorer(functions, [1.0, 10.0, 100.0, 0.0, -1.0], timeout_seconds=30) as scorer:
        assert scorer.names == ("length", "asynchronous", "scaled", "length_2", "Weighted")
        for _ in range(2):  # the async function insists on the same event loop
            (scores,) = scorer.score([request(completions=("a", "bb"))])
            assert scores.rewards == (208.0, 416.0)
            assert scores.parts == ((1.0, 1.0, 2.0, 1.0, 3.0), (2.0, 2.0, 4.0, 2.0, 6.0))


def test_every_ticket_has_its_own_scores_while_the_caller_goes_on(scorer):
    long_text = "x" * 1_000_000  # more than a pipe holds: submitting must not wait for the reader
    hangs = scorer.submit(request("a", act="hang"))
    others = [scorer.submit(request(name, (text,))) for name, text in (("b", long_text), ("c", "dd"))]
    assert not hangs.ready
    assert scorer.score([request("d", ("eeee",))])[0].rewards == (4.0,)
    assert all(ticket.ready for ticket in (hangs, *others)), "what was submitted before was begun before"
    # In any order, and more than once.
    assert [ticket.result().rewards for ticket in reversed(others)] == [(2.0,), (1_000_000.0,)]
    assert hangs.result().rewards == (None, None, None)
    assert others[0].result().rewards == (1_000_000.0,)


def test_killing_takes_along_what_the_function_started(scorer, tmp_path):
    pipe = tmp_path / "held-open"
    os.mkfifo(pipe)
    ticket = scorer.submit(request(completions=(str(pipe),), act="hang_with_subprocess"))
    with pipe.open() as reader:  # ends when the last process that holds the pipe is gone
        assert reader.read() == ""
    assert ticket.result().failures[0].kind == "timeout"


def test_close_does_not_wait_for_a_hanging_function():
    scorer = Scorer([spec("act")], [], timeout_seconds=10_000)
    scorer.start()
    tickets = [scorer.submit(request(act="hang")) for _ in range(3)]
    scorer.close()
    scorer.close()
    with pytest.raises(RuntimeError, match="closed"):
        tickets[-1].result()
    with pytest.raises(RuntimeError, match="not running"):
        scorer.submit(request())


@pytest.mark.parametrize(
    ("source", "start_seconds", "message"),
    [
        ("1 / 0", 120, "ZeroDivisionError"),
        ("", 120, "has no 'reward'"),
        ("import os; os._exit(7)", 120, "ended with exit code 7 while importing"),
        ("import threading; threading.Event().wait()", 2, "not ready after 2 s"),
    ],
)
def test_start_raises_what_keeps_the_function_from_being_imported(tmp_path, source, start_seconds, message):
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(TbaError) as caught:
        Scorer([f"{tmp_path}/mine.py:reward"], [], timeout_seconds=30, start_seconds=start_seconds).start()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_process_may_begin_early():
    scorer = Scorer([spec("act")], [], timeout_seconds=30)
    scorer.begin()
    with scorer:
        assert scorer.names == ("act",)
        assert scorer.score([request()])[0].rewards == (1.0, 2.0, 3.0)


def test_a_scorer_that_began_and_never_started_leaves_no_process():
    scorer = Scorer([spec("act")], [], timeout_seconds=30)
    before = set(multiprocessing.active_children())
    scorer.begin()
    assert len(set(multiprocessing.active_children()) - before) == 1
    scorer.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("ends_with", ["pass", "1 / 0"])
def test_a_module_is_warmed_up_before_its_first_request(tmp_path, ends_with):
    mine = tmp_path / "mine.py"
    mine.write_text(
        f"value = 0.0\ndef warm_up_rewards():\n    global value\n    value = 7.0\n    {ends_with}\n"
        "def reward(completions, **kwargs): return [value for _ in completions]"
    )
    with Scorer([f"{mine}:reward"], [], timeout_seconds=30) as scorer:
        assert scorer.score([request()])[0].rewards == (7.0,) * 3


def test_collect_raises_when_a_lost_process_cannot_be_replaced(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import os\ndef reward(**kwargs): os._exit(1)")
    with Scorer([f"{mine}:reward"], [], timeout_seconds=30) as scorer:
        mine.write_text("1 / 0  # and a different length")
        with pytest.raises(TbaError, match="ZeroDivisionError"):
            scorer.score([request(), request()])


def asked_to_meet(folder, guests, act="return"):
    columns = {"folder": str(folder), "guests": guests, "act": act}
    return ScoreRequest(f"p-{act}", "question", ("a",), ((1,),), (True,), columns, False)


def test_there_are_as_many_processes_as_were_asked_for(tmp_path):
    """The batch ends only if three calls are under way at once, each in a process of its own."""
    with Scorer([spec("meet")], [], timeout_seconds=60, num_processes=3) as scorer:
        assert [s.rewards for s in scorer.score([asked_to_meet(tmp_path, 3)] * 6)] == [(1.0,)] * 6
    assert len(list(tmp_path.iterdir())) == 3


def test_a_function_that_waits_gets_no_second_process(tmp_path):
    with Scorer([spec("meet")], [], timeout_seconds=60) as scorer:
        for _ in range(3):
            scorer.score([asked_to_meet(tmp_path, 1)] * 4)
    assert len(list(tmp_path.iterdir())) == 1


def test_async_functions_score_several_groups_at_once_in_one_process(tmp_path):
    """The batch ends only if all of its groups are under way together; a function that is not async may be beside."""
    functions = [spec("length"), spec("meet_inside")]
    with Scorer(functions, [], timeout_seconds=60) as scorer:
        assert scorer.overlaps
        count = GROUPS_AT_ONCE
        assert [s.rewards for s in scorer.score([asked_to_meet(tmp_path, count)] * count)] == [(2.0,)] * count
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("beside", [[], ["asynchronous"]])
def test_a_function_may_run_an_event_loop_itself(beside):
    functions = [spec("runs_a_loop_itself"), *map(spec, beside)]
    with Scorer(functions, [1.0] + [0.0] * len(beside), timeout_seconds=30) as scorer:
        assert [scores.rewards for scores in scorer.score([request()] * 3)] == [(1.0, 2.0, 3.0)] * 3


def test_an_async_group_that_hangs_is_dropped_while_the_others_of_its_process_go_on(tmp_path):
    with Scorer([spec("meet_inside")], [], timeout_seconds=LIMIT) as scorer:
        hanging, one, other = scorer.score([asked_to_meet(tmp_path, 2, act) for act in ("hang", "return", "return")])
        (later,) = scorer.score([asked_to_meet(tmp_path, 3)])
    assert one.rewards == other.rewards == later.rewards == (1.0,)
    assert [(f.prompt_id, f.function, f.kind) for f in hanging.failures] == [("p-hang", "meet_inside", "timeout")]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        ("exit", "died", "ended with exit code 3"),
        ("block", "timeout", "took more than 1 s"),
        ("cancel", "raised", "cancelled itself"),
    ],
)
def test_who_took_an_async_process_down_is_found_and_the_others_are_scored_again(
    tmp_path, monkeypatch, act, kind, message
):
    monkeypatch.setattr("tba.rewards.process.GRACE_SECONDS", 1.0)
    with Scorer([spec("meet_inside")], [], timeout_seconds=1) as scorer:
        one, guilty, other = scorer.score([asked_to_meet(tmp_path, 0, a) for a in ("return", act, "return")])
    assert one.rewards == other.rewards == (1.0,)
    assert guilty.rewards == (None,)
    (failure,) = guilty.failures
    assert (failure.prompt_id, failure.kind) == (f"p-{act}", kind)
    assert message in failure.message


@pytest.mark.parametrize("function", ["act", "act_async"])
@pytest.mark.parametrize("act", ["fork_and_return", "fork_and_raise", "fork_and_exit"])
def test_a_function_that_forks_moves_no_reward_to_another_group(function, act):
    with Scorer([spec(function)], [], timeout_seconds=30) as scorer:
        for number in range(4):
            (forked,) = scorer.score([request(completions=("f" * 7,), act=act)])
            assert forked.rewards == (7.0,)
            (scores,) = scorer.score([request(completions=("a" * number, "b"))])
            assert scores.rewards == (number, 1.0)


def test_an_answer_to_something_that_was_not_asked_is_refused():
    """Whoever writes into the pipe, a reward never reaches a group that it does not belong to."""
    with Scorer([spec("act")], [], timeout_seconds=30) as scorer:
        (lost,) = scorer.score([request(completions=("a", "bb"), act="answer_for_another")])
        assert [f.kind for f in lost.failures] == ["died"]
        assert scorer.score([request(completions=("a", "bb"))])[0].rewards == (1.0, 2.0)


def test_the_time_limit_covers_sending(scorer):
    """The process answers and then reads no more: a request that is larger than what a pipe holds cannot be sent."""
    answered, unread, fine = scorer.score(
        [request("a", act="stop_after_the_answer"), request("b", ("x" * 2_000_000,)), request("c")]
    )
    assert answered.rewards == fine.rewards == (1.0, 2.0, 3.0)
    assert [(f.prompt_id, f.kind) for f in unread.failures] == [("b", "timeout")]


def test_the_time_limit_covers_receiving(scorer):
    """The process stops for good in the middle of its answer."""
    halved, fine = scorer.score([request("a", act="stop_within_the_answer"), request("b")])
    assert [(f.prompt_id, f.kind) for f in halved.failures] == [("a", "timeout")]
    assert fine.rewards == (1.0, 2.0, 3.0)


def test_a_process_that_is_killed_while_it_starts_is_started_again(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, signal\n"
        "mark = pathlib.Path(__file__).with_name('was_here')\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def reward(texts, **columns): return [float(len(text)) for text in texts]\n"
    )
    with Scorer([f"{tmp_path}/mine.py:reward"], [], timeout_seconds=30) as scorer:
        assert scorer.score([request()])[0].rewards == (1.0, 2.0, 3.0)


def test_notes_that_cannot_be_sent_cost_their_own_group():
    with Scorer([spec("noting")], [], timeout_seconds=30) as scorer:
        lost, fine = scorer.score([request(act="lambda"), request()])
    assert [f.kind for f in lost.failures] == ["raised"]
    assert "cannot be sent" in lost.failures[0].message
    assert fine.rewards == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(("functions", "weights"), [([], []), (["a:b"], [1.0, 2.0]), (["a:b"], [math.nan])])
def test_functions_and_weights_are_checked(functions, weights):
    with pytest.raises(TbaError, match="reward"):
        Scorer(functions, weights, timeout_seconds=30)


def _score_and_send(connection):
    with Scorer([spec("length")], [], timeout_seconds=30) as scorer:
        connection.send(scorer.score([request()])[0].rewards)


def test_works_in_a_spawned_process():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    searcher = context.Process(target=_score_and_send, args=(theirs,))
    searcher.start()
    assert ours.recv() == (1.0, 2.0, 3.0)
    searcher.join()
    assert searcher.exitcode == 0


SCRIPT = """
import sys
from tba.rewards.scorer import Scorer, ScoreRequest

if __name__ == "__main__":
    scorer = Scorer([sys.argv[1]], [], timeout_seconds=10_000)
    scorer.start()
    ticket = scorer.submit(ScoreRequest("p", "", ("a",), ((1,),), (True,), {"act": sys.argv[2]}, False))
    if sys.argv[3] == "wait":
        ticket.result()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_killed_parent_leaves_no_orphan(script):
    """Even when the function hangs in a way that lets no other thread of its process run."""
    command = [sys.executable, str(script), spec("act"), "hang_with_lock_held", "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid  # printed by the reward process: it hangs from here on
        parent.kill()
        # The output is closed once every process that could write to it is gone.
        readable, _, _ = select.select([parent.stdout], [], [], 300)
        assert readable
        assert parent.stdout.read() == b""


def test_exit_without_close_does_not_wait(script):
    left = subprocess.run([sys.executable, str(script), spec("act"), "hang", "leave"], timeout=300)
    assert left.returncode == 0


HOSTILE = [r"\boxed{(9^{9999})^{9999}}", r"\boxed{10000000!}", r"\boxed{\binom{9999999}{4999999}}"]


def test_a_hostile_answer_costs_its_own_group_and_the_rest_of_the_batch_is_graded():
    """sympy would compute for hours with the interpreter lock held: only a kill ends it."""

    def asked(id, *completions):
        count = len(completions)
        return ScoreRequest(id, "?", completions, ((1,),) * count, (True,) * count, {"answer": "6"}, False)

    batch = [asked("before", "#### 6"), *(asked(h, "#### 6", h) for h in HOSTILE), asked("after", "#### 6", "#### 5")]
    with Scorer(["tba.rewards.answer:final_answer"], [], timeout_seconds=LIMIT, num_processes=3) as scorer:
        before, *lost, after = scorer.score(batch)
    assert before.rewards == (1.0,)
    for hostile, scores in zip(HOSTILE, lost, strict=True):
        assert scores.rewards == (None, None)
        assert [(failure.prompt_id, failure.kind) for failure in scores.failures] == [(hostile, "timeout")]
    assert after.rewards == (1.0, 0.0)


def test_numbers_a_function_reports_are_kept_under_its_name():
    def wordy(completions, log_metric):
        log_metric("words", 2)
        log_metric("nonsense", math.nan)
        return [0.0] * len(completions)

    assert score_now({"wordy": wordy}, request()).metrics == {"wordy/words": 2.0}


def test_a_number_stands_in_for_what_was_cut_off():
    cut = ScoreRequest("p", "question", ("a", "bb"), ((1,), (1,)), (True, False), {"act": "return"}, False)
    with Scorer([spec("act")], [1.0], timeout_seconds=LIMIT, cut_off_score=-3.0) as scorer:
        assert [scores.rewards for scores in scorer.score([cut])] == [(1.0, -3.0)]
