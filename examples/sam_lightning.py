"""Friendly SAM under Lightning, with automatic optimisation: its closure is all that the ascent needs.

python examples/sam_lightning.py [--epochs 10]      (pip install lightning)
"""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from holdfast.optim import FriendlySAM, frozen_statistics


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = FriendlySAM(self.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        """Only needed for BatchNorm: running statistics see each batch once."""
        optimizer.step(closure=optimizer_closure, descent_context=lambda: frozen_statistics(self))


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=10)
epochs = parser.parse_args().epochs

L.seed_everything(0, verbose=False)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train_set, test_set = random_split(digits, [1397, 400])
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", **quiet)
model = Digits()
trainer.fit(model, DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True))
found = trainer.test(model, DataLoader(test_set, batch_size=400), verbose=False)
print(f"test accuracy {found[0]['accuracy']:.3f}")
