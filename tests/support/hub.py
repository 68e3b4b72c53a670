"""A stand-in of the Hugging Face Hub: uploads are written to a cache folder, laid out as huggingface_hub lays it out.

    models--USER--NAME/blobs/HASH
    models--USER--NAME/refs/main                 the commit
    models--USER--NAME/snapshots/COMMIT/FILE     a link to its blob

Downloads are those of huggingface_hub itself, from this cache and without a network.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


class LocalHub:
    """Takes the place of `huggingface_hub.HfApi`."""

    cache: Path

    def __init__(self, token: str | None = None) -> None:
        self.token = token

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        for part in ("blobs", "refs", "snapshots"):
            (self.folder(name) / part).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> str:
        files = {path.name: path.read_bytes() for path in sorted(folder_path.iterdir())}
        commit = hashlib.sha1(b"".join(files.values())).hexdigest()
        repository = self.folder(repo_id)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(exist_ok=True)
        for name, content in files.items():
            blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            (snapshot / name).unlink(missing_ok=True)
            (snapshot / name).symlink_to(Path("..", "..", "blobs", blob.name))
        (repository / "refs" / "main").write_text(commit)
        return commit

    def folder(self, name: str) -> Path:
        return self.cache / f"models--{name.replace('/', '--')}"


def use_local_hub(patch: Any, cache: Path) -> type[LocalHub]:
    """Use a stand-in instead of the hub, for one test."""
    import huggingface_hub

    patch.setattr(LocalHub, "cache", cache, raising=False)
    patch.setattr(huggingface_hub, "HfApi", LocalHub)
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return LocalHub
