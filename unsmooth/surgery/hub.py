"""Upload and download saved models. No code in them is executed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.build import offline_without_network

HUB = "hf-hub:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_on_hub(path: str | Path) -> bool:
    return isinstance(path, str) and path.startswith(HUB)


def check_name(name: str) -> None:
    """Raise if `name` is not USER/NAME."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UnsmoothError(f"{name!r} is not the name of a repository on the hub. Use USER/NAME.")


def download(path: str, files: Sequence[str]) -> Path:
    """Some files of a repository, `hf-hub:USER/NAME` or `hf-hub:USER/NAME@REVISION`, as a folder in the hub's cache."""
    from huggingface_hub import snapshot_download

    name, _, revision = path.removeprefix(HUB).partition("@")
    check_name(name)
    try:
        with offline_without_network():
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(files)))
    except (OSError, ValueError) as error:  # the hub's errors are of both kinds
        raise UnsmoothError(
            f"cannot download {name} from the hub: {first_line(error)} Check the name and revision, and log in with "
            "`hf auth login` if it is private."
        ) from error


def upload(folder: Path, name: str, message: str, private: bool, token: str | None) -> str:
    """Upload a folder as one commit, to a new repository if there is none, and return the address of the commit."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        with offline_without_network():
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (OSError, ValueError) as error:
        raise UnsmoothError(
            f"cannot push to {name}: {first_line(error)} Log in with `hf auth login`, or pass token=…, and check that "
            "you may write to it."
        ) from error
    return str(commit)
