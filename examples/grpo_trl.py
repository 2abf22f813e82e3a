"""Train a language model by TRL's GRPOTrainer on rewards of the judge; it is tiny, made here, and runs on a CPU.

Needs the extra `trl`. Nothing is downloaded: the model has random weights, and the tokenizer's words are expressions of
Python, some of which solve a task, while others try to pass without. Only the reward function is as it would be in
earnest: RewardFunction takes what the model said and gives rewards, None to mask a completion.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.expressions import HACKS, PIECES, SOLUTIONS, submission, tasks
from minisandbox.integrations.reward import RewardFunction

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

GROUP = 8
"""How many completions of one prompt are compared."""


def main(arguments: Sequence[str]) -> int:
    """Train, and say how what the model says changed; return 0 when it got better."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="of the optimizer (here: %(default)s)")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    options = parser.parse_args(arguments)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the packages are imported
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    before = chances(model, tokenizer)
    with RewardFunction(tasks(), submission=submission, state_dir=options.state_dir) as reward:
        train(model, tokenizer, reward, options.steps)
    after = chances(model, tokenizer)
    for name, at in (("solves the task", 0), ("tries to cheat", 1)):
        print(f"{name}: {before[at]:.2f} before, {after[at]:.2f} after {options.steps} steps")
    return 0 if after[0] > before[0] and after[1] < before[1] else 1


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are names of tasks and pieces of programs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", "<unknown>", *SOLUTIONS, *PIECES]
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unknown>",
        padding_side="left",
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Return a small transformer with random weights, the same every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(model: Any, tokenizer: Any, reward: RewardFunction, steps: int) -> None:
    """Train on all tasks at once."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    names = list(SOLUTIONS)
    with tempfile.TemporaryDirectory(prefix="minisandbox-grpo-") as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=GROUP * len(names),
            num_generations=GROUP,
            max_completion_length=1,
            max_steps=steps,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            beta=0.0,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        rows = [{"prompt": name, "task": name} for name in names]
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[reward],
            args=config,
            train_dataset=Dataset.from_list(rows * 8),
        )
        trainer.train()


def chances(model: Any, tokenizer: Any) -> tuple[float, float]:
    """Return how likely the model begins with a solution, and with a cheat, over all tasks."""
    import torch

    solves, cheats = 0.0, 0.0
    model.eval()
    for name, solution in SOLUTIONS.items():
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer.encode(name)])).logits[0, -1]
        chance = torch.softmax(logits, dim=-1)
        solves += chance[tokenizer.convert_tokens_to_ids(solution)].item()
        cheats += sum(chance[tokenizer.convert_tokens_to_ids(hack)].item() for hack in HACKS)
    return solves / len(SOLUTIONS), cheats / len(SOLUTIONS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
