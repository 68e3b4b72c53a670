"""Settings of `unsmooth diagnose`."""

from __future__ import annotations

from unsmooth.utils.options import FilePath, option, options

LIMIT = 512


@options
class DiagnoseSettings:
    """What is measured of a model, and on how many images."""

    label = "diagnose"

    vitals: str = option("default", "vitals to measure, comma-separated; default or all")
    blocks: str | None = option(None, "blocks to measure: 6:, 0,3 or -1 (default: all)")
    checkpoint: FilePath | None = option(None, "weights to load into the model")
    data_dir: FilePath | None = option(None, "directory of timm data set files")
    prefix: bool = option(True, "include class and register tokens in token vitals")
    batch_size: int | None = option(None, "images per batch (default: by the size of the maps)", low=1)
    limit: int | None = option(LIMIT, "images to measure at most, evenly spaced", low=1)
    reference: bool = option(True, "measure the same architecture at random initialisation too")
