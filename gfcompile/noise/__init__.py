"""How far filtered gradients are from exact ones: measured in plain PyTorch on a user's batch, no code generated."""
