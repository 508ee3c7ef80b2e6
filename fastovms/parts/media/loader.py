"""Loads the images of requests within limits."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from fastovms.api.image_parts import ImageInput, ImageSource, too_many_images
from fastovms.api.served import TextTokens
from fastovms.errors import ConfigurationError, InvalidField, Overloaded, shortage_of
from fastovms.params import Image, ModelInfo
from fastovms.parts.media.decode import Admit, Decode, PixelBound, decode_image, is_available
from fastovms.parts.media.fetch import Fetcher, decode_data_url, too_large
from fastovms.server_config import MediaConfig

logger = logging.getLogger(__name__)


class MemoryBudget:
    """Counts the bytes of images, from before decoding until the images are released.
    Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._used = 0
        self._lock = Lock()

    @property
    def used(self) -> int:
        """The number of reserved bytes."""
        return self._used

    def take(self, num_bytes: int) -> None:
        """Reserves bytes. Raises Overloaded if the limit is reached."""
        with self._lock:
            if self._used + num_bytes > self.max_bytes:
                raise Overloaded("too many images are being read; try again later")
            self._used += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Releases reserved bytes."""
        with self._lock:
            self._used -= num_bytes

    def give_back_with(self, image: Image, num_bytes: int) -> None:
        """Releases the bytes when the image is garbage-collected."""
        weakref.finalize(image, self.give_back, num_bytes).atexit = False

    def decoded(
        self,
        decode: Decode,
        data: bytes,
        name: str,
        max_pixels: int,
        bound: PixelBound,
        check: Admit = lambda num_pixels, num_kept: None,
    ) -> Image:
        """Returns a decoded image. All its pixels are reserved during decoding, and then those of
        the shrunk image until it is garbage-collected. Raises Overloaded as `take` does, and the
        errors of `decode` and `check`. `check` is called before decoding."""
        taken = 0

        def admit(num_pixels: int, num_kept: int) -> None:
            nonlocal taken
            check(num_pixels, num_kept)
            self.take(num_pixels * 3)
            taken = num_pixels * 3

        try:
            image = decode(data, name, max_pixels, bound, admit)
        except BaseException:
            self.give_back(taken)
            raise
        self.give_back(taken - image.nbytes)
        self.give_back_with(image, image.nbytes)
        return image


class LocalFiles:
    """Reads files below one directory. Raises ConfigurationError if `root` is not a directory.

    Args:
        root: the directory that may be read; None = no files may be read.
    """

    def __init__(self, root: Path | None) -> None:
        if root is not None and not root.is_dir():
            raise ConfigurationError(f"--allowed-local-media-path {root} is not a directory")
        self._root = None if root is None else os.path.realpath(root)

    def read(self, url: str, name: str, *, max_bytes: int) -> bytes:
        """Returns the content of the file at an absolute path or a `file:` URL. Blocks while the
        disk is slow. Raises InvalidField if local files are not allowed, or the file is outside the
        directory, unreadable or too large. The error does not reveal whether a file outside the
        directory exists."""
        if self._root is None:
            raise InvalidField(f"{name}: this server does not read local files", param=name)
        path = _path_of(url)
        if path is None or ".." in path.split("/"):
            raise InvalidField(
                f"{name} must be the absolute path of a file, without ..", param=name
            )
        try:
            data = self._read(path, name, max_bytes + 1)
        except (OSError, ValueError) as error:
            fault = InvalidField(f"{name}: the file does not exist or cannot be read", param=name)
            raise shortage_of(error) or fault from None
        if len(data) > max_bytes:
            raise too_large(name, max_bytes)
        return data

    def _read(self, path: str, name: str, max_bytes: int) -> bytes:
        self._check_inside(os.path.realpath(path))
        # Not blocking, since a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            # The path may lead elsewhere by now; what has been opened stays.
            self._check_inside(os.readlink(f"/proc/self/fd/{descriptor}"))
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PermissionError
            if status.st_nlink > 1:
                # Another link to the same file may be outside of the directory; the path that
                # was opened does not show that.
                raise InvalidField(
                    f"{name}: a file with several hard links is refused: use a copy",
                    param=name,
                )
            return file.read(max_bytes)

    def _check_inside(self, path: str) -> None:
        assert self._root is not None
        if os.path.commonpath([self._root, path]) != self._root:
            raise PermissionError


def _path_of(url: str) -> str | None:
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote(parts.path)
    return path if path.startswith("/") else None


_NUM_THREADS: Final = 4
_NUM_AT_ONCE: Final = 4
"""The number of images of one request that are loaded at once."""

Result = TypeVar("Result")


class _Sizes:
    """Sums the decoded sizes of the images of one request. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._lock = Lock()

    def add(self, decoded: int, kept: int, name: str) -> None:
        """Counts an image. Raises InvalidField if the images of the request exceed the limit.

        Args:
            decoded: the bytes needed for decoding.
            kept: the bytes after shrinking.
        """
        with self._lock:
            self._total += kept
            total = self._total
        if max(total, decoded) > self._limit:
            raise InvalidField(
                f"{name}: the images of the request are too large together: decoded, they may "
                f"have {self._limit} bytes",
                param=name,
            )


_TAG_KEYS: Final = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
"""Keys in config.json for the ids of the tokens that stand for media such as images, or enclose
them."""


class ImageLoader:
    """Loads images: fetches on the event loop, decodes and reads files in threads. Raises
    ConfigurationError if an allowed domain or directory is invalid.

    Args:
        decode: decodes an image; called in the threads.
        close_decoder: releases the resources of `decode`.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        fetcher: Fetcher | None = None,
        decode: Decode = decode_image,
        close_decoder: Callable[[], None] = lambda: None,
    ) -> None:
        if not is_available():
            logger.warning(
                "images will be refused: install the extra vision (pip install '.[vision]')"
            )
        self._config = config
        self._decode_image = decode
        self._close_decoder = close_decoder
        self._budget = MemoryBudget(config.max_image_memory)
        self._files = LocalFiles(config.allowed_local_media_path)
        self._fetcher = fetcher or Fetcher(
            config.allowed_media_domains.split(",") if config.allowed_media_domains else (),
            allow_redirects=config.allow_media_redirects,
            allow_private=config.allow_private_media,
            timeout=config.media_timeout,
        )
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "media")

    @property
    def max_images(self) -> int:
        """The maximum number of images of a request."""
        return self._config.max_images

    def bound(self, processor: Mapping[str, Any]) -> PixelBound:
        """Returns the size to which images for a model are shrunk. `processor` is the content of
        the model's preprocessor_config.json."""
        return PixelBound.of(processor, self._config.shrink_images_to)

    async def load(
        self, sources: Sequence[ImageSource], bound: PixelBound | None = None
    ) -> list[Image]:
        """Returns the images, in the order of their sources. Raises InvalidField if an image is not
        available or cannot be decoded, or there are too many; Overloaded if memory is short.

        Args:
            bound: the size to which larger images are shrunk; None = `--shrink-images-to`. Three or
                more images together may have at most twice as many pixels, because the cost of
                attention may grow with the square of their number.
        """
        config = self._config
        if len(sources) > config.max_images:
            raise too_many_images(sources[config.max_images], config.max_images)
        at_once = asyncio.Semaphore(_NUM_AT_ONCE)
        share = max(1, 2 * config.shrink_images_to // max(1, len(sources)))
        bound = bound or self.bound({})
        bound = bound._replace(max_pixels=min(bound.max_pixels, share))
        decode = partial(self._decode, _Sizes(self._budget.max_bytes), bound)
        tasks = [asyncio.ensure_future(self._one(source, at_once, decode)) for source in sources]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # The error of a task refers to this frame, whose variables, such as the other images,
            # would stay in memory until the next garbage collection.
            while tasks:
                tasks.pop().cancel()

    def input_of(
        self, model: ModelInfo, tokenizer: TextTokens, processor: Mapping[str, Any]
    ) -> ImageInput:
        """Returns the loader of images for one model's requests. `processor` is the content of the
        model's preprocessor_config.json."""
        ids = [value for key in _TAG_KEYS if type(value := model.config.get(key)) is int]
        texts = (tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids)
        reserved = tuple(text for text in dict.fromkeys(texts) if text.strip())
        return self.input(reserved, self.bound(processor))

    def input(self, reserved: tuple[str, ...] = (), bound: PixelBound | None = None) -> ImageInput:
        """Returns a loader of images for requests. `bound` is the size to which larger images are
        shrunk; None = `--shrink-images-to`."""
        return ImageInput(partial(self.load, bound=bound), self.max_images, reserved)

    def close(self) -> None:
        """Ends the decoder and cancels its running work. The loader is then unusable."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._close_decoder()

    async def _one(
        self,
        source: ImageSource,
        at_once: asyncio.Semaphore,
        decode: Callable[[bytes, str], Image],
    ) -> Image:
        async with at_once:
            with self._room_to_read(source):
                data = await self._read(source)
            return await self._in_thread(decode, data, source.name)

    @contextmanager
    def _room_to_read(self, source: ImageSource) -> Iterator[None]:
        """Reserves memory for an image file while the context is open. An image in the request
        itself is in memory already. A single image is always admitted."""
        size = min(self._config.max_image_bytes, self._budget.max_bytes)
        if _scheme(source.url) == "data":
            size = 0
        self._budget.take(size)
        try:
            yield
        finally:
            self._budget.give_back(size)

    async def _read(self, source: ImageSource) -> bytes:
        url, name, _ = source
        limit = self._config.max_image_bytes
        scheme = _scheme(url)
        if scheme == "data":
            return await self._in_thread(decode_data_url, url, name, max_bytes=limit)
        if scheme in ("http", "https"):
            return await self._fetcher.fetch(url, name, max_bytes=limit)
        if scheme == "file" or url.startswith("/"):
            return await self._in_thread(self._files.read, url, name, max_bytes=limit)
        raise InvalidField(
            f"{name} must be a data URL, an http or https URL or the path of a file", param=name
        )

    def _decode(self, sizes: _Sizes, bound: PixelBound, data: bytes, name: str) -> Image:
        def check(num_pixels: int, num_kept: int) -> None:
            sizes.add(num_pixels * 3, num_kept * 3, name)

        limit = self._config.max_image_pixels
        return self._budget.decoded(self._decode_image, data, name, limit, bound, check)

    async def _in_thread(
        self, function: Callable[..., Result], *arguments: object, **options: object
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **options))


def _scheme(url: str) -> str:
    return url[:16].partition(":")[0].lower()
