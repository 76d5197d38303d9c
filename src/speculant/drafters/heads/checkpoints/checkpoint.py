"""A checkpoint of a head, in a folder or on the hub: its config and its tensors. No code in it is executed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.core.hub import hub_advice, why_missing

PATTERNS = ("*.json", "*.safetensors", "*.bin", "*.pt")
_OTHER_STATES = ("optimizer", "rng_state", "scaler", "scheduler", "training_args")  # saved by trainers with the weights


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The contents of a checkpoint folder.

    Attributes:
        source: folder or hub id given by the user.
        config: contents of config.json; {} if there is none.
        tensors: tensors by name.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def without(self, prefix: str) -> Checkpoint:
        """Return the checkpoint with a prefix removed from the tensor names that have it."""
        tensors = {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items()}
        return Checkpoint(self.source, self.config, tensors)

    def value(self, name: str, default: Any = None) -> Any:
        """Return a value of the config.

        Raises:
            UnsupportedError: it is missing, and there is no default.
        """
        found = self.config.get(name, default)
        if found is None:
            raise UnsupportedError(f"config.json of the head in {self.source} has no {name!r}, which its format needs.")
        return found


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a head's checkpoint.

    Args:
        source: a folder or a hub id.

    Raises:
        ModelNotFoundError: there is no checkpoint, or one of its files is damaged.
    """
    folder = find_folder(source)
    config = read_config(folder)
    files = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    files = [file for file in files if not file.stem.startswith(_OTHER_STATES)]
    if not files:
        raise ModelNotFoundError(
            f"{source} has no head weights (*.safetensors, *.bin or *.pt). Name the folder or hub id of a head."
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_tensors(file)
    return Checkpoint(str(source), config, tensors)


def find_folder(source: str | Path) -> Path:
    """Return the folder of a checkpoint, downloading it if the source is a hub id.

    Raises:
        ModelNotFoundError: there is no such checkpoint.
    """
    return Path(source) if Path(source).is_dir() else _fetch(str(source))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint's config.json; {} if there is none.

    Raises:
        ModelNotFoundError: the file is damaged.
    """
    config_file = folder / "config.json"
    try:
        found = json.loads(config_file.read_text("utf-8")) if config_file.exists() else {}
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{config_file} is not JSON: {error}. Fetch the checkpoint again.") from error
    if not isinstance(found, dict):
        raise ModelNotFoundError(f"{config_file} is not a JSON object. Fetch the checkpoint again.")
    return found


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    *,
    ignored: Iterable[str] = (),
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Load weights into a module, which must match exactly.

    Args:
        module: module with parameters of the right shapes; it takes the checkpoint's dtype.
        checkpoint: the checkpoint, for messages.
        tensors: weights by the module's names.
        ignored: names that may be present without being used, such as copies of the target's embeddings.
        names: the checkpoint's names by the module's, where they differ; for messages.

    Raises:
        UnsupportedError: a weight is missing, unexpected or of another shape; the message names it.
    """
    wanted = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    wanted = {name: wanted[name] for name in module.state_dict()}
    missing = sorted(names.get(name, name) for name in wanted.keys() - tensors.keys())
    extra = sorted(tensors.keys() - wanted.keys() - set(ignored))
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing)
        parts += [f"has the unexpected {', '.join(extra)}"] * bool(extra)
        raise UnsupportedError(
            f"the head in {checkpoint.source} {' and '.join(parts)}, so it does not match its format. It may be "
            "truncated, or its format is not supported."
        )
    for name, parameter in wanted.items():
        if parameter.shape != tensors[name].shape:
            public, found = names.get(name, name), list(tensors[name].shape)
            raise UnsupportedError(
                f"the head in {checkpoint.source} has {public} of shape {found} where its config gives "
                f"{list(parameter.shape)}; it belongs to another model, or its config is wrong."
            )
    dtypes = [tensor.dtype for name, tensor in tensors.items() if name in wanted and tensor.is_floating_point()]
    if not dtypes:
        raise UnsupportedError(
            f"the weights of the head in {checkpoint.source} are integers: heads of quantised weights are not "
            "supported. Name one in float32, bfloat16 or float16."
        )
    module.to(dtypes[0])
    module.load_state_dict({name: tensors[name] for name in wanted}, assign=False)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message as a sentence, or the error's class if there is no message."""
    text = str(error).strip().splitlines()[0].strip() if str(error).strip() else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(found, dict):
            raise ValueError(f"it holds one {type(found).__name__}, not tensors by name.")
    except Exception as error:  # damaged files and pickles with code raise many kinds of errors; all are reported alike
        raise ModelNotFoundError(
            f"{file} cannot be read as weights: {first_line(error)} Only tensors are read, no code is run; fetch the "
            "file again, or convert it to safetensors."
        ) from error
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _fetch(source: str) -> Path:
    """Return the folder of a checkpoint from the hub, downloading it if it is not cached."""
    if reason := why_missing(source):
        raise ModelNotFoundError(f"there is no head at {source}: {reason}.")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(PATTERNS)))
    except Exception as error:  # hub access raises many kinds of errors; all are reported alike
        raise ModelNotFoundError(
            f"there is no folder {source}, and no head of that name could be fetched from the hub: {first_line(error)} "
            f"{hub_advice()}"
        ) from error
