"""The Trainer of `decouple_plain.py` with an encoder rank. Start both in any order.

python examples/decouple.py MODEL train.jsonl OUT
flowtrain encoder --job OUT/job
"""

import sys

import torch
from transformers import AutoModelForImageTextToText, Trainer, TrainingArguments

from flowtrain.data import VlmCollator, VlmSamples
from flowtrain.integrations import decouple

folder, data, out = sys.argv[1:]
trainer = Trainer(
    model=AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32),
    args=TrainingArguments(
        out,
        per_device_train_batch_size=8,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=0.1,
        logging_steps=1,
        num_train_epochs=1,
        remove_unused_columns=False,
    ),
    train_dataset=VlmSamples(folder, data),
    data_collator=VlmCollator(folder),
)
decouple(trainer, f"{out}/job", max_tokens=512)
trainer.train()
trainer.save_model()
