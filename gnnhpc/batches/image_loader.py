"""Which images a step trains on, and a thread that loads the next batch in advance."""

from __future__ import annotations

import functools
import queue
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from gnnhpc.batches.shuffle import permutation
from gnnhpc.data.images import Images, Indices

_CHECKSUM_STRIDE = 8


def epoch_indices(
    samples: int, batch_size: int, replicas: int, replica: int, seed: int, step: int
) -> tuple[int, Indices]:
    """The epoch of a step, and the sample numbers int64 [batch_size] of one replica's mini-batch.

    A pure function, so that ranks agree without communication: an epoch is one permutation of all
    samples, cut into global mini-batches, each cut into one part a replica. A sample comes at most
    once an epoch; the samples after the last whole global mini-batch are left out. Raises
    ValueError if not one global mini-batch fits.
    """
    together = batch_size * replicas
    if not 0 < together <= samples:
        raise ValueError(f"{replicas} x {batch_size} does not fit into {samples} samples")
    if not 0 <= replica < replicas or step < 0:
        raise ValueError(f"no replica {replica} of {replicas}, or no step {step}")
    epoch, number = divmod(step, samples // together)
    first = number * together + replica * batch_size
    return epoch, permutation(samples, seed, epoch)[first : first + batch_size].copy()


def content_checksum(images: Images, indices: Indices) -> int:
    """CRC-32 of the labels and of a sample of the pixels: equal where the same was loaded."""
    labels = zlib.crc32(images.labels[indices].tobytes())
    return zlib.crc32(images.take(indices, _CHECKSUM_STRIDE).tobytes(), labels)


@dataclass(frozen=True)
class LoadedImages:
    """One replica's mini-batch; its tensors are overwritten once the next batch is taken."""

    step: int
    epoch: int
    indices: Indices
    """int64 [B], sample numbers in the split."""
    pixels: Tensor | None
    """[B, H*W, channels] in 0..1, for the first stage; None for other stages."""
    labels: Tensor
    """int64 [B], for the stage of the loss."""
    checksum: int
    """Of labels and pixels; must be equal on all stages."""


@dataclass(frozen=True)
class _Buffers:
    pixels: Tensor | None
    labels: Tensor


class ImageLoader:
    """Mini-batches of steps `start` to `stop`, the next one loaded while this one is in use.

    A thread fills two sets of buffers in turn, with numpy alone: torch's worker threads belong to
    the training. Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        images: Images,
        *,
        batch_size: int,
        replicas: int = 1,
        replica: int = 0,
        seed: int = 0,
        start: int = 0,
        stop: int,
        dtype: torch.dtype = torch.float32,
        pixels: bool = True,
        pin_memory: bool = False,
    ) -> None:
        self._images = images
        self._steps = range(start, stop)
        self._part = functools.partial(
            epoch_indices, len(images), batch_size, replicas, replica, seed
        )
        self._free: queue.SimpleQueue[_Buffers | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[LoadedImages, _Buffers] | Exception | None]
        self._ready = queue.SimpleQueue()
        self._in_use: _Buffers | None = None
        self._ended = False
        channels, height, width = images.image_shape
        shape = (batch_size, height * width, channels)
        for _ in range(2):
            self._free.put(
                _Buffers(
                    torch.empty(shape, dtype=dtype, pin_memory=pin_memory) if pixels else None,
                    torch.empty(batch_size, dtype=torch.int64, pin_memory=pin_memory),
                )
            )
        self._thread = threading.Thread(target=self._fill_all, name="image-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[LoadedImages]:
        return self

    def __next__(self) -> LoadedImages:
        """The next batch; raises what the thread raised. The batch before may be overwritten."""
        if self._ended:
            raise StopIteration
        if self._in_use is not None:
            self._free.put(self._in_use)
            self._in_use = None
        item = self._ready.get()
        if isinstance(item, tuple):
            batch, self._in_use = item
            return batch
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stop the thread; safe to call twice."""
        self._ended = True
        self._free.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fill_all(self) -> None:
        try:
            for step in self._steps:
                buffers = self._free.get()
                if buffers is None or self._ended:
                    return
                self._ready.put((self._fill(step, buffers), buffers))
            self._ready.put(None)
        except Exception as error:
            self._ready.put(error)

    def _fill(self, step: int, buffers: _Buffers) -> LoadedImages:
        epoch, indices = self._part(step)
        if buffers.pixels is not None:
            self._images.batch_into(indices, buffers.pixels.numpy())
        buffers.labels.numpy()[:] = self._images.labels[indices]
        checksum = content_checksum(self._images, indices)
        return LoadedImages(step, epoch, indices, buffers.pixels, buffers.labels, checksum)
