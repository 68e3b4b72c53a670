"""Semantic segmentation: a treated timm host under Hugging Face's UperNet, on data in the layout of ADE20K."""

from unsmooth.tasks.segmentation.evaluate import evaluate_segmentation
from unsmooth.tasks.segmentation.storage import load_segmenter, save_segmenter
from unsmooth.tasks.segmentation.task import open_task

__all__ = ["evaluate_segmentation", "load_segmenter", "open_task", "save_segmenter"]
