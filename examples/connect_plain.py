"""A plain training loop of a vision-language model. `connect.py` is the same with encoder ranks.

python examples/connect_plain.py MODEL train.jsonl OUT
"""

import sys

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForImageTextToText

from flowtrain.data import VlmCollator, VlmSamples

folder, data, out = sys.argv[1:]
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

loader = DataLoader(VlmSamples(folder, data), batch_size=8, collate_fn=VlmCollator(folder))
for number, batch in enumerate(loader):
    loss = model(**batch).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    print(f"step {number}: gradient norm {norm:.5g}")
model.save_pretrained(out)
