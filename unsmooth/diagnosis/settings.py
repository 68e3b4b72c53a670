"""Settings of `diagnose`."""

from __future__ import annotations

from unsmooth.utils.options import FilePath, option, options

LIMIT = 512


@options
class DiagnoseSettings:
    """Vitals, blocks and images of a diagnosis."""

    label = "diagnose"

    vitals: str = option(
        "vitals to measure, comma-separated, or default, quick, sinks, theory or all", default="default"
    )
    blocks: str | None = option("blocks to measure, such as 6:, 0,3 or -1 (default: all)", default=None)
    checkpoint: FilePath | None = option("weights to load into the model", default=None)
    pretrained: bool = option("load the library's pretrained weights", default=False)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    prefix: bool = option("include class and register tokens in token vitals", default=True)
    batch_size: int | None = option("images per batch (default: 4 to 16, by the size of the maps)", default=None, low=1)
    limit: int | None = option("maximum number of images, evenly spaced over the data", default=LIMIT, low=1)
    quick: bool = option("measure tokens, map entropy and branch ratios only", default=False)
    device: str = option("device: cpu, cuda, cuda:N or mps (default: cuda or mps if available)", default="")
    reference: bool = option("also measure the same architecture at random initialisation", default=True)
