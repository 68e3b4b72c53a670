"""Visual question answering: VQAv2 (Goyal et al., CVPR 2017) with ViLT (Kim et al., ICML 2021), with remedies."""

from unsmooth.tasks.vqa.storage import load_vqa

__all__ = ["load_vqa"]
