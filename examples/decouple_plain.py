"""Training by the Hugging Face Trainer. `decouple.py` is the same with encoder ranks.

python examples/decouple_plain.py MODEL train.jsonl OUT
"""

import sys

import torch
from transformers import AutoModelForImageTextToText, Trainer, TrainingArguments

from flowtrain.data import VlmCollator, VlmSamples

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
trainer.train()
trainer.save_model()
