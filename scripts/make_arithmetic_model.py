"""Make the embedded policy, `tba/models/arithmetic/`: a Llama of a million parameters that has half learned sums.

It is warm-started by imitation, on chains that are never held out. Its examples come from two demonstrators. One is
careful. The other, who wrote most of them, gets the last digit right and forgets the carry: `7+8=5`, `12-5=17`. The
policy learns both ways. Greedily it follows the majority and fails wherever a carry is needed, on about half of the
held-out `easy` chains; sampled, it is careful now and then, and so a reward on the final answer alone has something
to find. Two clean warm starts that were stopped early, at greedy 0.38 and 0.57, learned slowly or collapsed under the
same reinforcement. `hard` chains are not shown: they are for larger models.

    python scripts/make_arithmetic_model.py             # about four minutes on one core
    python scripts/make_arithmetic_model.py --measure   # only measure what is there
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from tba.tasks import arithmetic
from tba.tasks.chains import LEVELS, Chain, Level

OUT = Path(__file__).parent.parent / "tba" / "models" / "arithmetic"
SPECIAL = ("<pad>", "<bos>", "<eos>")
CONTEXT = 256
CAREFUL_SHARE = 0.4
MEDIUM_SHARE = 0.1
NUM_STEPS = 700
BATCH_SIZE = 32
MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
FORMAT = re.compile(r"(-?\d+[+-]\d+=-?\d+\n)+#### -?\d+")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that any text goes through and comes back. Nothing is added at either end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, bos, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id
    )
    return model


def forget_carry(total: int, term: int) -> int:
    """The last digit and the sign of the sum, with the tens the total had before."""
    size = abs(total) // 10 * 10 + abs(total + term) % 10
    return size if total + term >= 0 else -size


def demonstrate(chain: Chain, *, careful: bool) -> str:
    if careful:
        return chain.solution
    total, *rest = chain.terms
    lines = []
    for term in rest:
        written = forget_carry(total, term)
        lines.append(f"{total}{term:+d}={written}")
        total = written
    return "\n".join([*lines, f"#### {total}"])


def batches(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and labels, without end. Prompts and padding carry no label."""
    while True:
        level = LEVELS["medium" if rng.random() < MEDIUM_SHARE else "easy"]
        assert isinstance(level, Level)
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < BATCH_SIZE:
            chain = level.draw(rng)
            if chain.held_out:
                continue
            worked = demonstrate(chain, careful=rng.random() < CAREFUL_SHARE)
            rows.append((tokenizer.encode(chain.prompt), [*tokenizer.encode(worked), tokenizer.eos_token_id]))
        length = max(len(prompt) + len(response) for prompt, response in rows)
        ids, labels = torch.zeros(BATCH_SIZE, length, dtype=torch.long), torch.full((BATCH_SIZE, length), -100)
        for row, (prompt, response) in enumerate(rows):
            end = len(prompt) + len(response)
            ids[row, :end] = torch.tensor(prompt + response)
            labels[row, len(prompt) : end] = torch.tensor(response)
        yield ids, labels


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al., 2024), in float32: a third of AdamW's steps here.

    `torch.optim.Muon` iterates in bfloat16, which is ten times slower on a CPU.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(parameter.grad.lerp(average, group["momentum"]))
                parameter.add_(update, alpha=-group["lr"] * max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest orthogonal matrix, on the short side."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalise(matrix.T).T
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * gram + 2.0315 * gram @ gram) @ matrix
    return matrix


def warm_start(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> None:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = (Muon(matrices, MATRIX_RATE), torch.optim.AdamW(others, OTHER_RATE, weight_decay=0.0))
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, _cosine) for optimizer in optimizers]
    for step, (ids, labels) in zip(range(1, NUM_STEPS + 1), batches(tokenizer, rng), strict=False):
        logits = model(input_ids=ids).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 50 == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


def _cosine(step: int) -> float:
    return min(1.0, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * step / NUM_STEPS))


def measure(directory: Path, difficulty: str, max_new_tokens: int, num_samples: int = 16) -> str:
    """Greedy and sampled scores on the default held-out set, from the files as saved."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = arithmetic.Settings.model_validate({"difficulty": difficulty, "num_train": 1})
    held_out = config.load(lambda content: (str(content), tuple(tokenizer.encode(content)))).held_out
    answers = [problem.columns["answer"] for problem in held_out]
    inputs = tokenizer([problem.prompt.text for problem in held_out], return_tensors="pt", padding=True)

    def texts(**settings: Any) -> list[str]:
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, **settings)
        return [str(text) for text in tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])]

    def correct(text: str, answer: str) -> bool:
        return text.replace("<pad>", "").endswith(f"\n#### {answer}<eos>")

    torch.manual_seed(0)
    greedy = [correct(*pair) for pair in zip(texts(do_sample=False), answers, strict=True)]
    rounds = [texts(do_sample=True, temperature=1.0, top_k=0) for _ in range(num_samples)]
    hits = torch.tensor([[correct(*pair) for pair in zip(round_, answers, strict=True)] for round_ in rounds]).float()
    bodies = [text.replace("<pad>", "") for round_ in rounds for text in round_]
    well_formed = [FORMAT.fullmatch(body.removesuffix("<eos>")) is not None for body in bodies]
    length = sum(len(body.removesuffix("<eos>")) + body.endswith("<eos>") for body in bodies) / len(bodies)
    return (
        f"{difficulty}: greedy {sum(greedy) / len(greedy):.3f}, sampled {hits.mean():.3f}, "
        f"pass@{num_samples} {hits.amax(0).mean():.3f}, well formed {sum(well_formed) / len(bodies):.3f}, "
        f"length {length:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure", action="store_true", help="make nothing, measure the directory")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.measure:
        torch.manual_seed(arguments.seed)
        tokenizer = make_tokenizer()
        model = make_model(tokenizer)
        print(f"{model.num_parameters():,} parameters")
        warm_start(model, tokenizer, random.Random(f"{arguments.seed}/warm-start"))
        model.bfloat16().save_pretrained(arguments.out)
        for file in arguments.out.glob("*.safetensors"):
            file.chmod(0o644)  # it is written readable by its owner only, and it ships to others
        tokenizer.save_pretrained(arguments.out)
    print(measure(arguments.out, "easy", max_new_tokens=40))
    print(measure(arguments.out, "medium", max_new_tokens=64))


if __name__ == "__main__":
    main()
