"""Trains LoRA adapters of a small LLaVA, and loads them with PEFT.

`python examples/lora/train_small.py [FOLDER]`; without a folder, all files are temporary.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from flowtrain.config import from_dict
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.launch.run import train


def write_base(folder: Path) -> None:
    """Writes strips of handwritten digits, and a model with random weights for a released one."""
    write_digits(folder, train=64, heldout=8, sizes=SMALLEST, family="llava")
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder / "model"))
    model.save_pretrained(folder / "model")


def train_adapters(folder: Path) -> Path:
    """Trains adapters of tower and language model for 30 steps, on two ranks."""
    config = from_dict(
        {
            "run": folder / "run",
            "model": {"path": folder / "model", "freeze": ["projector"]},
            "data": {"path": folder / "train.jsonl", "workers": 0},
            "train": {"steps": 30, "global_batch": 8, "microbatch_tokens": 512},
            "lora": {"encoder": {"rank": 4}, "backbone": {"rank": 8, "alpha": 16}},
            "optim": {"lr": 1e-2, "schedule": "cosine"},
            "flow": {"mode": "strict", "ranks": 2},
        }
    )
    train(config)
    return config.run / "final"


def answer_loss(model: torch.nn.Module, processor: AutoProcessor, data: Path) -> float:
    """Mean loss of the answers to the strips of a file, with plain Hugging Face."""
    losses = []
    for line in data.read_text().splitlines():
        strip = json.loads(line)
        question, answer = (message["content"] for message in strip["messages"])
        content = [{"type": "image"}, {"type": "text", "text": question.replace("<image>", "")}]
        prompt = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        images = [Image.open(data.parent / path).convert("RGB") for path in strip["images"]]
        inputs = processor(text=prompt + answer, images=images, return_tensors="pt")
        asked = processor(text=prompt, images=images, return_tensors="pt")["input_ids"].shape[1]
        labels = inputs["input_ids"].clone()
        labels[:, :asked] = -100
        with torch.no_grad():
            losses.append(float(model(**inputs, labels=labels).loss))
    return sum(losses) / len(losses)


def main(folder: Path) -> None:
    """Compares the losses of held-out strips without and with the adapters."""
    write_base(folder)
    adapters = train_adapters(folder)
    processor = AutoProcessor.from_pretrained(adapters)
    base = AutoModelForImageTextToText.from_pretrained(folder / "model").eval()
    before = answer_loss(base, processor, folder / "heldout.jsonl")
    model = PeftModel.from_pretrained(base, adapters).eval()
    after = answer_loss(model, processor, folder / "heldout.jsonl")
    trained = sum(p.numel() for name, p in model.named_parameters() if ".lora_" in name)
    print(f"{trained} parameters of adapters; loss {before:.2f} before, {after:.2f} after")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
