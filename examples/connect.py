"""The loop of `connect_plain.py`, whose images an encoder rank encodes. Start both in any order.

python examples/connect.py MODEL train.jsonl OUT
flowtrain encoder --job OUT.job
"""

import sys

import torch
from transformers import AutoModelForImageTextToText

import flowtrain

folder, data, out = sys.argv[1:]
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

with flowtrain.connect(f"{out}.job", model, optimizer, clip_norm=1.0) as flow:
    for number, step in enumerate(flow.steps(data, samples=8, max_tokens=512)):
        for batch in step:
            loss = model(**batch).loss * batch.weight
            loss.backward()
        norm = flow.step()
        scheduler.step()
        print(f"step {number}: gradient norm {norm:.5g}")
    flow.save_pretrained(out)
