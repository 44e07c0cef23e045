"""Friendly SAM in a training loop of your own: plain torch, BatchNorm, a cosine schedule, scikit-learn's digits.

python examples/sam_plain_loop.py [--epochs 10]
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from holdfast.optim import FriendlySAM, frozen_statistics

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=10)
epochs = parser.parse_args().epochs

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
train_set, test_set = random_split(digits, [1397, 400])
loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(256, 10)),
)
optimizer = FriendlySAM(
    model.parameters(), torch.optim.SGD, rho=0.1, lr=0.03, momentum=0.9, weight_decay=1e-3, nesterov=True, fused=True
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))

for _ in range(epochs):
    model.train()
    for x, y in loader:

        def closure(x=x, y=y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        # The closure runs at w and again at w + eps; running statistics should see each batch once.
        optimizer.step(closure, descent_context=lambda: frozen_statistics(model))
        schedule.step()

model.eval()
with torch.no_grad():
    x, y = test_set[:]
    accuracy = (model(x).argmax(1) == y).float().mean().item()
print(f"test accuracy {accuracy:.3f}")
