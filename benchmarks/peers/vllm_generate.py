"""vLLM's CPU build on the same work, run by a Python that has it (its torch pins do not go with everybody's).

    python vllm_generate.py MODEL_DIR NUM_PROMPTS NUM_RESPONSES PROMPT_LENGTH NUM_TOKENS eager|compiled REPEATS

Prints one JSON line, tokens a second, for each repetition. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time

SETTINGS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    os.environ.update(SETTINGS)
    import numpy as np
    from vllm import LLM, SamplingParams

    model, mode = sys.argv[1], sys.argv[6]
    num_prompts, num_responses, prompt_length, num_tokens, repeats = (int(sys.argv[i]) for i in (2, 3, 4, 5, 7))
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=mode == "eager",
        block_size=32,
        max_model_len=prompt_length + num_tokens + 8,
        max_num_seqs=num_prompts * num_responses,
    )
    rng = np.random.default_rng(0)
    vocabulary = llm.model_config.get_vocab_size() if hasattr(llm, "model_config") else 49_152
    asked = [{"prompt_token_ids": rng.integers(3, vocabulary, prompt_length).tolist()} for _ in range(num_prompts)]

    def sampling(length: int) -> SamplingParams:
        return SamplingParams(
            n=num_responses, temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False
        )

    llm.generate(asked, sampling(4), use_tqdm=False)
    for _ in range(repeats):
        llm.reset_prefix_cache()  # responses share their prompt, repetitions share nothing
        start = time.perf_counter()
        outputs = llm.generate(asked, sampling(num_tokens), use_tqdm=False)
        spent = time.perf_counter() - start
        count = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        print(json.dumps({"tokens_per_second": count / spent}), flush=True)


if __name__ == "__main__":
    main()
