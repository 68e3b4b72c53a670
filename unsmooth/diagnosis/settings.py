"""Settings of `diagnose`."""

from __future__ import annotations

from unsmooth.utils.options import FilePath, option, options

LIMIT = 512


@options
class DiagnoseSettings:
    """Vitals, blocks and images of a diagnosis."""

    label = "diagnose"

    vitals: str = option("default", "vitals to measure, comma-separated, or default or all")
    blocks: str | None = option(None, "blocks to measure, such as 6:, 0,3 or -1 (default: all)")
    checkpoint: FilePath | None = option(None, "weights to load into the model")
    data_dir: FilePath | None = option(None, "directory of the files of timm datasets")
    prefix: bool = option(True, "include class and register tokens in token vitals")
    batch_size: int | None = option(None, "images per batch (default: 4 to 16, by the size of the maps)", low=1)
    limit: int | None = option(LIMIT, "maximum number of images, evenly spaced over the data", low=1)
    reference: bool = option(True, "also measure the same architecture at random initialisation")
