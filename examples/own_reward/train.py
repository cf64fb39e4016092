"""Train any causal LM of transformers on prompts and rewards of one's own, from Python.

    python examples/own_reward/train.py

The same from the command line, with the rows in a file:

    tba train --model arithmetic --task.data examples/own_reward/prompts.jsonl --task.num-eval 8 \
        --reward examples/own_reward/rewards.py:right_answer,examples/own_reward/rewards.py:brevity \
        --reward.weights 1,0.2 --trainer.learning-rate 1e-4 --engine.max-new-tokens 40
"""

import argparse

from rewards import brevity, right_answer

from tba import train


def rows() -> list[dict[str, str]]:
    """Sums of three digits. `prompt` may also be chat messages: [{"role": "user", "content": …}]."""
    triples = [(a, b, c) for a in range(1, 6) for b in range(1, 6) for c in range(1, 4)]
    return [{"prompt": f"{a}+{b}+{c}=\n", "answer": str(a + b + c)} for a, b, c in triples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="arithmetic", help="a Hugging Face directory or id")
    parser.add_argument("--num-steps", type=int, default=40)
    parser.add_argument("--root", default="runs", help="where runs are kept")
    arguments = parser.parse_args()
    result = train(
        model=arguments.model,
        dataset=rows(),
        reward=[right_answer, brevity],
        run={"root": arguments.root},
        task={"num_eval": 8},
        reward_weights=(1.0, 0.2),
        engine={"max_new_tokens": 40},
        trainer={"num_steps": arguments.num_steps, "num_groups": 4, "learning_rate": 1e-4},
        evaluation={"period": 20},
    )
    print(f"reward {result.summary['reward_first']:.3f} → {result.summary['reward_last']:.3f}, model in {result.model}")


if __name__ == "__main__":  # the processes of the run import this file
    main()
