from __future__ import annotations

import itertools
import random
import re
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.rewards.answer import final_answer
from tba.tasks import arithmetic
from tba.tasks.chains import LEVELS, Chain, Level, Mixture, draw_chains
from tba.types import TbaError

MODEL = Path(str(resources.files("tba").joinpath("models", "arithmetic")))
difficulties = pytest.mark.parametrize("difficulty", list(LEVELS))


def encode(content):
    return content, tuple(content.encode())


def problems(**settings):
    task = arithmetic.Settings(**settings).load(encode)
    return [p.prompt.text for p in task.train], [p.prompt.text for p in task.held_out]


@st.composite
def chains(draw):
    level = draw(st.sampled_from(list(LEVELS.values())))
    return draw_chains(level, 1, held_out=False, rng=random.Random(draw(st.integers())))[0]


@difficulties
def test_the_sets_have_the_sizes_asked_for_and_share_nothing(difficulty):
    train, held_out = problems(difficulty=difficulty)
    assert (len(set(train)), len(set(held_out))) == (4096, 256)
    assert not set(train) & set(held_out)


def test_no_seed_trains_on_what_another_holds_out():
    trained = set().union(*(problems(seed=seed)[0] for seed in range(3)))
    held_out = set().union(*(problems(seed=seed)[1] for seed in range(3)))
    assert not trained & held_out


@difficulties
def test_a_seed_repeats_its_sets_and_another_gives_others(difficulty):
    assert problems(difficulty=difficulty, seed=3) == problems(difficulty=difficulty, seed=3)
    for one, other in zip(problems(difficulty=difficulty), problems(difficulty=difficulty, seed=1), strict=True):
        assert one != other


@difficulties
def test_each_set_ignores_the_size_of_the_other_and_only_grows_at_its_end(difficulty):
    train, held_out = problems(difficulty=difficulty, num_train=500, num_eval=50)
    assert problems(difficulty=difficulty, num_train=20, num_eval=50) == (train[:20], held_out)
    assert problems(difficulty=difficulty, num_train=500, num_eval=5) == (train, held_out[:5])


@given(chains())
def test_every_line_of_the_working_is_right_and_follows_from_the_last(chain):
    *working, final = Chain(chain.terms).solution.split("\n")
    total, terms = str(chain.terms[0]), [f"{term:+d}" for term in chain.terms[1:]]
    assert len(working) == len(terms)
    for line, term in zip(working, terms, strict=True):
        sum_, result = line.split("=")
        assert sum_ == total + term
        assert eval(sum_) == int(result)
        total = result
    assert final == f"#### {total}"
    assert int(total) == chain.answer == eval(str(chain))


@given(chains())
def test_what_a_prompt_gives_of_the_working_is_what_the_response_need_not_write(chain):
    whole, begun = Chain(chain.terms), Chain(chain.terms, begun=True)
    assert whole.prompt == f"{chain}=\n"
    assert begun.prompt + begun.solution == whole.prompt + whole.solution
    assert begun.solution == f"{chain.answer}\n#### {chain.answer}"


@given(chains())
def test_a_carry_is_where_the_tens_change(chain):
    """Working it out digit by digit without them goes wrong in these places and in no other."""
    totals = list(itertools.accumulate(chain.terms))
    careless = [
        int(f"{'-' if after < 0 else ''}{abs(before) // 10}{abs(after) % 10}")
        for before, after in itertools.pairwise(totals)
    ]
    assert chain.num_carries == sum(one != other for one, other in zip(careless, totals[1:], strict=True))


@difficulties
def test_the_default_reward_accepts_the_solution_and_no_other_answer(difficulty):
    task = arithmetic.Settings(difficulty=difficulty, num_train=1, num_eval=20).load(encode)
    assert task.default_reward == f"{final_answer.__module__}:{final_answer.__name__}"
    for problem in task.held_out:
        terms = [int(term) for term in re.findall(r"[+-]?\d+", problem.prompt.text.partition("=")[0])]
        begun = problem.prompt.text.count("=") > 1
        right = Chain(tuple(terms), begun)
        assert problem.prompt.text == right.prompt
        assert problem.prompt.id == f"arithmetic-{right}{'-begun' * begun}"
        assert problem.columns == {"answer": str(right.answer), "num_terms": len(terms)}
        wrong = Chain((terms[0] + 1, *terms[1:]))
        assert final_answer([right.solution, wrong.solution], [problem.columns["answer"]] * 2) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("difficulty", "num_terms", "sizes"),
    [
        ("easy", range(3, 5), range(1, 10)),
        ("medium", range(5, 7), range(1, 10)),
        ("carry", range(5, 7), range(1, 10)),
        ("hard", range(6, 9), range(10, 100)),
        ("mixed", (3, 4, 6), range(1, 10)),
    ],
)
def test_each_difficulty_fills_its_bounds_and_keeps_them(difficulty, num_terms, sizes):
    drawn = draw_chains(LEVELS[difficulty], 3000, held_out=False, rng=random.Random(0))
    assert {len(chain.terms) for chain in drawn} == set(num_terms)
    assert {abs(term) for chain in drawn for term in chain.terms} == set(sizes)
    assert all(chain.terms[0] > 0 for chain in drawn)
    assert any(chain.answer < 0 for chain in drawn)


def test_exactly_a_ninth_of_the_chains_is_held_out():
    level = Level(min_terms=2, max_terms=3, min_term=1, max_term=9)
    every = [
        Chain((first, *(sign * size for sign, size in zip(signs, rest, strict=True))))
        for count in (1, 2)
        for first, *rest in itertools.product(range(1, 10), repeat=count + 1)
        for signs in itertools.product((1, -1), repeat=count)
    ]
    for held_out in (True, False):
        assert sum(chain.held_out == held_out for chain in every) == level.num_chains(held_out=held_out)
        drawn = draw_chains(level, level.num_chains(held_out=held_out), held_out=held_out, rng=random.Random(0))
        assert set(drawn) == {chain for chain in every if chain.held_out == held_out}


def test_every_chain_of_carries_has_two():
    drawn = draw_chains(LEVELS["carry"], 2000, held_out=False, rng=random.Random(0))
    assert min(chain.num_carries for chain in drawn) == 2
    assert max(chain.num_carries for chain in drawn) > 2


@pytest.mark.parametrize("wanted", [{"min_carries": 2}, {"almost_done": True}, {"min_carries": 1, "almost_done": True}])
def test_chains_with_a_condition_are_counted_exactly(wanted):
    """Against every chain of three terms, one by one."""
    level = Level(min_terms=3, max_terms=3, min_term=1, max_term=9, **wanted)
    signed = [sign * size for size in range(1, 10) for sign in (1, -1)]
    every = [Chain(terms) for terms in itertools.product(range(1, 10), signed, signed)]
    met = [
        chain
        for chain in every
        if chain.num_carries >= level.min_carries and (not level.almost_done or chain.answer in range(10))
    ]
    for held_out in (True, False):
        available = level.num_chains(held_out=held_out)
        assert sum(chain.held_out == held_out for chain in met) == available > 0
        drawn = draw_chains(level, available, held_out=held_out, rng=random.Random(0))
        assert {chain.terms for chain in drawn} == {chain.terms for chain in met if chain.held_out == held_out}


def tokens_of(chain):
    """One for each character, and the end."""
    return len(chain.solution) + 1


def test_the_solutions_of_mixed_chains_have_a_long_tail():
    """By the lengths of each part: every long chain takes more than four times the median, and they are a fifth."""
    mixed = LEVELS["mixed"]
    assert isinstance(mixed, Mixture)
    (short_share, short), (_, middle), (long_share, long) = mixed.parts
    assert sum(share for share, _ in mixed.parts) == pytest.approx(1)
    rng = random.Random(0)
    lengths = [{tokens_of(level.draw(rng)) for _ in range(2000)} for level in (short, middle, long)]
    assert lengths[0] == {9}, "an answer of one digit, twice"
    assert short_share > 0.5, "so the median is 9"
    assert min(lengths[2]) >= 4 * 9
    assert long_share >= 0.1
    assert max(lengths[2]) <= 64


def test_the_largest_sets_of_mixed_chains_can_be_drawn():
    available = LEVELS["mixed"].num_chains(held_out=True)
    assert available > 2048
    assert len(problems(difficulty="mixed", num_train=1, num_eval=available)[1]) == available


@pytest.mark.parametrize("held_out", [True, False])
def test_sets_of_mixed_chains_keep_the_long_tail(held_out):
    lengths = sorted(map(tokens_of, draw_chains(LEVELS["mixed"], 1024, held_out=held_out, rng=random.Random(0))))
    median = lengths[512]
    assert median == 9
    assert sum(length >= 4 * median for length in lengths) / 1024 == pytest.approx(0.2, abs=0.05)
    assert sum(lengths[-205:]) > sum(lengths[:-205]), "a fifth of the responses is more than half of the work"


@pytest.mark.parametrize(("setting", "available"), [("num_train", 49_248), ("num_eval", 6_156)])
def test_more_problems_than_there_are_is_one_line_that_names_the_setting(setting, available):
    with pytest.raises(TbaError, match=rf"^task\.{setting} = {available + 1} is more than the {available} easy .*$"):
        problems(**{setting: available + 1})


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


@given(chain=chains())
def test_chains_and_solutions_pass_through_the_tokenizer_a_token_for_each_character(tokenizer, chain):
    for text in (chain.prompt, chain.solution):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert len(tokens) == len(text)
        assert not set(tokens) & set(tokenizer.all_special_ids)


@given(text=st.text())
def test_any_text_passes_through_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_prompt_and_response_encode_to_the_parts_of_the_whole(tokenizer):
    chain = Chain((7, 8, -3, 5))
    assert chain.prompt + chain.solution == "7+8-3+5=\n7+8=15\n15-3=12\n12+5=17\n#### 17"
    whole = tokenizer.encode(chain.prompt + chain.solution)
    assert whole == tokenizer.encode(chain.prompt) + tokenizer.encode(chain.solution)
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3


def test_the_embedded_model_is_small_and_has_half_of_the_skill(tokenizer):
    import torch
    from transformers import LlamaForCausalLM

    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 3e6
    model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    held_out = arithmetic.Settings(num_train=1).load(encode).held_out
    inputs = tokenizer([problem.prompt.text for problem in held_out], return_tensors="pt", padding=True)
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    answers = [problem.columns["answer"] for problem in held_out]
    rewards = final_answer(tokenizer.batch_decode(output, skip_special_tokens=True), answers)
    assert 0.40 <= sum(rewards) / len(rewards) <= 0.55
