"""`tba export`: what is written loads elsewhere, and nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_lora import adapted, moved
from transformers import AutoModelForCausalLM, AutoTokenizer

from tba.cli import main
from tba.config.settings import Config
from tba.launch.export import export
from tba.learn.checkpoint import save_checkpoint
from tba.policy.lora import save_adapter, save_merged
from tba.policy.policy import load_model, load_tokenizer
from tba.runs.best import KeptBest
from tba.runs.run_config import write_run_config
from tba.testing import save_tiny_model
from tba.types import TbaError, Version

IDS = torch.arange(3, 9)[None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a run with adapters leaves it: a checkpoint at step 4, and a best model that is another one."""
    root = tmp_path_factory.mktemp("export")
    base, run = str(save_tiny_model(root / "base")), root / "run"
    run.mkdir()
    write_run_config(run, Config.embedded(model={"path": base}))

    def save(folder: Path, seed: int) -> None:
        pytest.importorskip("peft")
        model = moved(adapted(load_model(base)))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(seed)
        save_merged(model, folder / "model")
        load_tokenizer(base).save_pretrained(folder / "model")
        save_adapter(model, folder / "adapter")

    save_checkpoint(run, 4, save=lambda folder: save(folder, 1), state={}, keep_last=1)
    KeptBest(run, lambda values: "accuracy", lambda folder: save(folder, 2)).offer(Version(0, 2), {"accuracy": 1.0})
    return run


def logits(folder: Path | str) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits


@pytest.mark.parametrize("source", ["", "checkpoints/step-000004", "checkpoints/step-000004/model"])
def test_a_run_a_checkpoint_and_a_model_are_exported(run: Path, source: str, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    assert export(str(run / source), output) == f"vllm serve {output}"
    assert torch.equal(logits(output), logits(run / "checkpoints/step-000004/model"))
    assert AutoTokenizer.from_pretrained(output)("12").input_ids
    assert not [path for path in output.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
    assert [path.name for path in output.parent.iterdir()] == ["out"], "nothing is left beside it"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_written_in_the_type_that_is_asked_for(run: Path, dtype: str, tmp_path: Path) -> None:
    export(str(run), tmp_path / "out", dtype=dtype)
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config.get("dtype") or config["torch_dtype"]) == dtype
    export(str(tmp_path / "out"), tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert {tensor.dtype for tensor in again.values()} == {getattr(torch, dtype)}, "that of the source unless said"


def test_an_adapter_is_exported_and_served_on_its_base_model(run: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    serve = export(str(run), tmp_path / "mine", form="adapter", dtype="bfloat16")
    base = run.parent / "base"
    assert serve == f"vllm serve {base} --enable-lora --max-lora-rank 8 --lora-modules mine={tmp_path / 'mine'}"
    assert {t.dtype for t in load_file(tmp_path / "mine/adapter_model.safetensors").values()} == {torch.bfloat16}
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "mine")
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, logits(run / "checkpoints/step-000004/model"), rtol=0, atol=0.2)


def test_the_best_model_of_a_run_is_exported(run: Path, tmp_path: Path) -> None:
    export(str(run), tmp_path / "out", best=True)
    assert torch.equal(logits(tmp_path / "out"), logits(run / "best/step-000002/model"))
    assert not torch.equal(logits(tmp_path / "out"), logits(run / "checkpoints/step-000004/model"))


def test_what_cannot_be_exported_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    base = str(run.parent / "base")
    (tmp_path / "there").mkdir()
    with pytest.raises(TbaError, match="exists already"):
        export(base, tmp_path / "there")
    with pytest.raises(TbaError, match="has no adapter of its own"):
        export(base, tmp_path / "out", form="adapter")
    with pytest.raises(TbaError, match=r"--best needs a run"):
        export(base, tmp_path / "out", best=True)
    with pytest.raises(TbaError, match=r"--dtype = 'int4' is not known"):
        export(base, tmp_path / "out", dtype="int4")
    with pytest.raises(TbaError, match="no-such-model"):
        export("./no-such-model", tmp_path / "out")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.toml").touch()
    with pytest.raises(TbaError, match="has no checkpoint yet"):
        export(str(empty), tmp_path / "out")
    with pytest.raises(TbaError, match="nothing was evaluated"):
        export(str(empty), tmp_path / "out", best=True)
    assert not (tmp_path / "out").exists()


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    assert f"vllm serve {tmp_path / 'out'}" in capsys.readouterr().out
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert main(["export", str(run), str(tmp_path / "other"), "--merged", "--adapter"]) == 2
    assert main(["export", str(run)]) == 2
