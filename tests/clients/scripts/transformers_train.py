"""Transformers' Trainer: a GPT-2 of two layers with random weights."""

from __future__ import annotations

import tempfile

import torch
from told import BACKEND, tell
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
words = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(1))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, use_cpu=True, ddp_backend=BACKEND, num_train_epochs=2, report_to="none",
        per_device_train_batch_size=8, learning_rate=1e-3, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=[{"input_ids": w, "labels": w} for w in words]
    )
    trainer.train()
assert arguments.world_size == 2
tell(model.parameters(), arguments.process_index)
