"""What other tools call our settings: their users type these names first.

Names are those of TRL, verl, prime-rl and transformers' trainers, in lower case and with underscores. A name with a dot
is looked for before its last part.
"""

from __future__ import annotations

from difflib import get_close_matches

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "trainer.learning_rate": ("lr", "learning_rate", "optim.lr", "actor.optim.lr", "peak_lr"),
    "trainer.num_steps": (
        "steps",
        "max_steps",
        "num_train_steps",
        "total_training_steps",
        "total_steps",
        "num_iterations",
    ),
    "trainer.num_groups": ("train_batch_size", "prompts_per_step", "rollout_batch_size", "batch_size"),
    "trainer.group_size": ("n_samples_per_prompt",),
    "searcher.num_responses": (
        *("num_generations", "rollout.n", "rollouts_per_example", "num_return_sequences", "samples_per_prompt"),
    ),
    "searcher.prompts_per_batch": ("generation_batch_size", "max_num_seqs", "gen_batch_size"),
    "searcher.num_searchers": ("num_workers", "num_actors", "num_rollout_workers", "world_size"),
    "searcher.skip_equal_rewards": ("filter_groups", "dynamic_sampling", "online_difficulty_filtering"),
    "trainer.micro_batch_tokens": (
        *("per_device_train_batch_size", "gradient_accumulation_steps", "micro_batch_size", "ppo_micro_batch_size"),
        *("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu", "max_tokens_per_microbatch"),
    ),
    "engine.max_new_tokens": (
        *("max_completion_length", "max_response_length", "max_tokens", "response_length", "max_length", "seq_len"),
    ),
    "engine.temperature": ("temperature", "rollout.temperature", "sampling.temperature"),
    "objective.beta": ("beta", "kl_coef", "kl_loss_coef", "kl_ctrl.kl_coef", "kl_beta", "kl_penalty"),
    "objective.kind": ("loss_type", "adv_estimator", "algorithm", "algo", "advantage_estimator"),
    "trainer.sync_period": (
        "vllm_sync_steps",
        "weight_sync_steps",
        "num_steps_per_sync",
        "trigger_parameter_sync_step",
    ),
    "trainer.max_staleness": (
        *("max_async_level", "async_level", "max_off_policy_steps", "staleness_threshold"),
        *("max_head_offpolicyness", "max_staleness_steps", "off_by_n", "async_steps", "max_trajectory_age_steps"),
    ),
    "trainer.warmup_steps": ("lr_warmup_steps", "num_warmup_steps", "warmup_ratio"),
    "trainer.schedule": ("lr_scheduler_type", "lr_scheduler", "scheduler"),
    "trainer.weight_decay": ("weight_decay", "wd"),
    "trainer.max_grad_norm": ("max_grad_norm", "grad_clip", "clip_grad", "max_norm", "gradient_clip_val"),
    "model.path": (
        "model_name_or_path",
        "model_name",
        "model.name",
        "model_id",
        "base_model",
        "pretrained_model_name_or_path",
    ),
    "model.gradient_checkpointing": ("enable_gradient_checkpointing", "activation_checkpointing", "ac"),
    "model.attention": ("attn_implementation", "attn", "flash_attention", "use_remove_padding"),
    "model.chat_template": ("chat_template_path",),
    "model.lora_rank": ("lora_r", "lora", "use_peft", "peft", "r"),
    "model.precision": ("bf16", "dtype", "torch_dtype", "mixed_precision"),
    "engine.stop": ("stop_strings", "stop_sequences"),
    "task.data": ("dataset", "dataset_name", "train_files", "train_file", "train_dataset", "data.path"),
    "task.eval_data": ("val_files", "eval_dataset", "test_files", "val_data"),
    "task.split": ("dataset_split", "train_split", "dataset_train_split"),
    "task.prompt_column": ("prompt_key", "prompt_field", "input_key"),
    "task.max_prompt_tokens": ("max_prompt_length", "max_prompt_len"),
    "reward.functions": ("reward_funcs", "reward_fn", "custom_reward_function", "rewards"),
    "reward.model": ("reward_model", "reward_model_path"),
    "reward.weights": ("reward_weights",),
    "reward.cut_off": (
        *("mask_truncated_completions", "overlong_filter", "overlong_filtering", "overlong_buffer"),
        "filter_truncated",
    ),
    "reward.timeout_seconds": ("reward_timeout", "verification_timeout"),
    "reference.ema": ("ref_model_mixup_alpha",),
    "reference.reset_period": ("ref_model_sync_steps",),
    "run.root": ("output_dir", "default_local_dir", "save_dir", "log_dir"),
    "run.name": ("run_name", "experiment_name", "exp_name"),
    "run.seed": ("seed", "random_seed"),
    "metrics.wandb": ("report_to", "use_wandb", "logger", "monitor"),
    "checkpoint.period": ("save_strategy", "save_steps", "save_freq", "save_interval", "ckpt.interval", "save_every"),
    "checkpoint.keep_last": ("save_total_limit", "max_ckpt_to_keep", "ckpt.keep", "max_checkpoints"),
    "evaluation.period": ("eval_strategy", "eval_steps", "test_freq", "eval_interval", "eval_every", "eval_freq"),
    "checkpoint.keep_best": ("load_best_model_at_end", "metric_for_best_model", "save_best"),
    "evaluation.patience": ("early_stopping_patience", "early_stopping"),
    "evaluation.num_samples": ("val_kwargs.n", "num_eval_samples"),
}
"""By our setting: what others call it, or what does the same here."""

WITHOUT_EQUAL: dict[str, str] = {
    "epochs": "trainer.num_steps is the length of a run, and prompts come again as often as it takes",
    "num_train_epochs": "trainer.num_steps is the length of a run, and prompts come again as often as it takes",
    "total_epochs": "trainer.num_steps is the length of a run, and prompts come again as often as it takes",
    "logging_steps": "every step is recorded in metrics.jsonl",
    "log_completions": "every response is in the folder rollouts of the run",
    "device": "model.device is where the model is trained, engine.device where responses are generated",
    "resume_from_checkpoint": "`tba train --resume RUN` goes on with a run",
    "resume_mode": "`tba train --resume RUN` goes on with a run",
    "overwrite_output_dir": "`--overwrite` replaces a run of the same name",
    "push_to_hub": "`tba export RUN FOLDER` writes a folder that can be uploaded",
    "hub_model_id": "`tba export RUN FOLDER` writes a folder that can be uploaded",
    "num_gpus": "model.device and engine.device name the devices, such as cuda:1",
    "n_gpus_per_node": "model.device and engine.device name the devices, such as cuda:1",
    "deepspeed": "a model is trained on one device, which model.device names",
    "fsdp": "a model is trained on one device, which model.device names",
    "tensor_model_parallel_size": "a model is on one device, which engine.device names for each Searcher",
    "gpu_memory_utilization": "trainer.micro_batch_tokens and searcher.prompts_per_batch decide what memory is taken",
    "num_iterations_per_batch": "trainer.sync_period and the replay buffer decide how often data are used",
    "epsilon": 'trajectory balance needs no clipping; objective.kind = "grpo" has it (`tba train --help grpo`)',
    "clip_ratio": 'trajectory balance needs no clipping; objective.kind = "grpo" has it (`tba train --help grpo`)',
    "use_vllm": "responses are generated with transformers, and no other engine can be chosen",
}
"""Settings of others that have none to stand for them here, and what to do instead."""

_OURS = {other: ours for ours, others in OTHER_NAMES.items() for other in others}


def meant_by(name: str, known: list[str]) -> str:
    """What to say to someone who gave a setting that there is not; empty if nothing comes to mind."""
    tails = [name, *(name.split(".", n)[-1] for n in range(1, name.count(".") + 1))]
    own = [setting for setting in known if setting.endswith(f".{name}")]
    others = [_OURS[tail] for tail in tails if tail in _OURS and _OURS[tail] in known]
    # A name that one kind of task has, too, is more often meant as everywhere else.
    of_all = [setting for setting in own if not setting.startswith("task.")]
    for setting in (*of_all, *others, *own):
        return f"did you mean {setting}? "
    for tail in tails:
        if tail in WITHOUT_EQUAL:
            return f"{WITHOUT_EQUAL[tail]}; "
    close = get_close_matches(name, known, 1, 0.8)
    return f"did you mean {close[0]}? " if close else ""
