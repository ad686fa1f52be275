"""Engines by libraries: torch.distributed.pipelining and torchgpipe."""
