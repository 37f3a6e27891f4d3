"""The compiled step against PyTorch eager."""
