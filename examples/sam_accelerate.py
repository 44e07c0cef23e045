"""Friendly SAM under Accelerate: the closure calls accelerator.backward.

python examples/sam_accelerate.py [--epochs 10]      (pip install accelerate)
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from holdfast.optim import FriendlySAM, frozen_statistics

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=10)
epochs = parser.parse_args().epochs

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train_set, test_set = random_split(digits, [1397, 400])

accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
ascent = FriendlySAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9, weight_decay=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(ascent, T_max=epochs * (len(train_set) // 64))
model, _, schedule, loader = accelerator.prepare(
    model, ascent, schedule, DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)
)

for _ in range(epochs):
    model.train()
    for x, y in loader:

        def closure(x=x, y=y):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            return loss

        # The optimizer that prepare() returns takes a closure and nothing else; ours takes the context too.
        ascent.step(closure, descent_context=lambda: frozen_statistics(model))
        schedule.step()

model.eval()
with torch.no_grad():
    x, y = (part.to(accelerator.device) for part in test_set[:])
    accuracy = (model(x).argmax(1) == y).float().mean().item()
accelerator.print(f"test accuracy {accuracy:.3f}")
