"""An ONNX file in, a trainable nn.Module out, and the weights back into the file's own graph."""
