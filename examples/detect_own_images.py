"""Learn what is normal from images alone, then flag what is not; nothing here needs a label.

python examples/detect_own_images.py [--epochs 15]
"""

import argparse

import torch
from sklearn.datasets import load_digits

from holdfast.detect import MinimiseSettings, auroc, fit

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=15)
epochs = parser.parse_args().epochs

# Your images go here: uint8 (N, C, H, W), or float in [0, 1]. Digits 0 to 4 are what the detector gets to know.
pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
labels = torch.tensor(labels)
normal, foreign = images[labels < 5], images[labels >= 5]

fitted = fit(
    normal[:700],
    scores=("reconstruction", "mahalanobis"),
    vae_loop=MinimiseSettings(epochs=epochs, batch_size=32, lr=3e-3),
    encoder_loop=MinimiseSettings(epochs=max(2, epochs // 2), batch_size=32, lr=3e-3, schedule="cosine"),
    false_alarm_rate=0.05,
)
known, unknown = fitted.report(normal[700:]), fitted.report(foreign)
truth = torch.cat([torch.zeros(len(known.scores)), torch.ones(len(unknown.scores))]).bool()
print(f"AUROC {auroc(torch.cat([known.scores, unknown.scores]), truth):.3f}")
print(f"flagged: {known.flags.float().mean():.0%} of known digits, {unknown.flags.float().mean():.0%} of unknown ones")
print("one reason:", next(reason for reason in unknown.reasons if reason))
# fitted.save("my-detector") keeps it; FittedDetector.load("my-detector") and `holdfast detect score` read it.
