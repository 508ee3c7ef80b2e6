"""Loads the images of requests, as many as `--max-images`: reads or fetches them, then decodes
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.config.api_config import MediaConfig
from fastovms.errors import InvalidField
from fastovms.media.data_url import decode_data_url
from fastovms.media.decode import Decode, PixelBound, decode_image, is_available
from fastovms.media.fetch import Fetcher
from fastovms.media.image_tags import image_tag
from fastovms.media.local_file import LocalFiles
from fastovms.media.memory_budget import MemoryBudget
from fastovms.params import Image

logger = logging.getLogger(__name__)

_NUM_THREADS: Final = 4
_NUM_AT_ONCE: Final = 4
"""How many images of one request are loaded at a time."""

Result = TypeVar("Result")


class ImageSource(NamedTuple):
    """Says where an image of a request is to be had.

    Attributes:
        url: `data:`, `http:` or `https:`, `file:`, or an absolute path.
        name: the part of the request that it is in, for messages.
        detail: how closely a client wants it looked at. Models decide that themselves.
    """

    url: str
    name: str
    detail: str = "auto"


class GivenImages:
    """Collects the images of one request as they are read.

    Args:
        max_images: how many there may be; None = any number, of which some may be dropped.

    Attributes:
        sources: those that have been read.
    """

    def __init__(self, max_images: int | None) -> None:
        self._max_images = max_images
        self.sources: list[ImageSource] = []

    def add(self, source: ImageSource) -> str:
        """Adds an image and returns the tag that stands for it in the prompt.

        Raises:
            InvalidField: it is one too many.
        """
        if self._max_images is not None and len(self.sources) >= self._max_images:
            raise _too_many(source, self._max_images)
        self.sources.append(source)
        return image_tag(len(self.sources) - 1)


def _too_many(source: ImageSource, max_images: int) -> InvalidField:
    return InvalidField(
        f"{source.name} is one image too many: a request may have {max_images}", param=source.name
    )


class _Sizes:
    """Sums the decoded sizes of the images of one request. It is thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._lock = Lock()

    def add(self, decoded: int, kept: int, name: str) -> None:
        """Counts an image.

        Args:
            decoded: bytes that decoding it takes.
            kept: bytes that it has afterwards.

        Raises:
            InvalidField: the images can never be in memory together.
        """
        with self._lock:
            self._total += kept
            total = self._total
        if max(total, decoded) > self._limit:
            raise InvalidField(
                f"{name} makes the images of the request too large together: decoded, they may "
                f"have {self._limit} bytes",
                param=name,
            )


class ImageLoader:
    """Loads images. Fetching is done on the event loop, everything that takes the processor or the
    disk in threads of its own.

    Args:
        decode: decodes an image; it is called in those threads.
        close_decoder: ends what `decode` uses.

    Raises:
        ConfigurationError: images are to come from where they cannot.
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
            logger.warning("images will be refused: install fastovms with the extra vision")
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
        """How many one request may have."""
        return self._config.max_images

    def bound(self, processor: Mapping[str, Any]) -> PixelBound:
        """Returns the size to which images for a model are shrunk.

        Args:
            processor: the model's preprocessor_config.json.
        """
        return PixelBound.of(processor, self._config.shrink_images_to)

    async def load(
        self, sources: Sequence[ImageSource], bound: PixelBound | None = None
    ) -> list[Image]:
        """Returns the images, in the order of their sources.

        Args:
            bound: the size to which a larger image is shrunk; None = `--shrink-images-to`. Three
                and more images share twice as many pixels, since a model's attention may grow with
                the square of all of them.

        Raises:
            InvalidField: one cannot be had or decoded, or there are too many.
            Overloaded: there is no memory for them now.
        """
        config = self._config
        if len(sources) > config.max_images:
            raise _too_many(sources[config.max_images], config.max_images)
        at_once = asyncio.Semaphore(_NUM_AT_ONCE)
        share = max(1, 2 * config.shrink_images_to // max(1, len(sources)))
        bound = bound or self.bound({})
        bound = bound._replace(max_pixels=min(bound.max_pixels, share))
        decode = partial(self._decode, _Sizes(self._budget.max_bytes), bound)
        tasks = [asyncio.ensure_future(self._one(source, at_once, decode)) for source in sources]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # A task's failure refers to this frame: what it refers to would stay in memory, the
            # other images among it, until the collector comes.
            while tasks:
                tasks.pop().cancel()

    def close(self) -> None:
        """Ends the decoder, with whatever it still decodes. Nothing may be loaded after this."""
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
        """Reserves memory for the file of an image. One in the request itself is in memory already,
        and one alone always has room."""
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
        """Decodes an image. It counts with all its pixels while it is decoded, and then with those
        that are left."""
        taken = 0

        def admit(num_pixels: int, num_kept: int) -> None:
            nonlocal taken
            sizes.add(num_pixels * 3, num_kept * 3, name)
            self._budget.take(num_pixels * 3)
            taken = num_pixels * 3

        limit = self._config.max_image_pixels
        try:
            image = self._decode_image(data, name, limit, bound, admit)
        except BaseException:
            self._budget.give_back(taken)
            raise
        self._budget.give_back(taken - image.nbytes)
        self._budget.give_back_with(image, image.nbytes)
        return image

    async def _in_thread(
        self, function: Callable[..., Result], *arguments: object, **options: object
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **options))


def _scheme(url: str) -> str:
    return url[:16].partition(":")[0].lower()
