"""Loading of models and tokenizers from a folder, the hub, or the package itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from speculant.core.errors import ModelNotFoundError, OutOfMemoryError, SpeculantError, TokenizerError, UsageError
from speculant.core.hub import hub_advice
from speculant.engines.hf.sources import find_model, find_tokenizer
from speculant.engines.hf.tokenizer_files import load_tokenizer_file
from speculant.engines.llamacpp.file import begins_as_gguf

if TYPE_CHECKING:
    from speculant.engines.hf.quantized.rounding import Scheme

logger = logging.getLogger(__name__)

_OF_TOKENIZERS = ("token", "vocab", "merges", "spiece", "sentencepiece", "bpe", "tekken")  # in file names
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")


def check_dtype(dtype: str | None) -> None:
    """Check the name of a dtype without importing PyTorch.

    Raises:
        UsageError: weights cannot be loaded in this dtype.
    """
    if dtype not in (None, *DTYPES):
        raise UsageError(f"there is no dtype '{dtype}'; try float32, bfloat16, float16 or auto.")


def check_quantize(scheme: str | None, *, dtype: str | None, device: str | None) -> None:
    """Check the quantisation options of a model without importing PyTorch.

    Raises:
        UsageError: there is no such scheme, or not on this device or in this dtype.
    """
    if scheme is None:
        return
    if scheme not in ("int8", "int4"):
        raise UsageError(f"quantize must be int8 or int4, not {scheme!r}.")
    if device not in (None, "cpu"):
        raise UsageError(f"weights are quantised on CPUs, not on {device}. Use device cpu, or leave quantize out.")
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise UsageError(f"quantised models run in float32 or bfloat16, not {dtype}. Leave the dtype out.")


def load_model(
    name: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    attention: str | None = None,
    quantize: str | None = None,
    packed_cache: bool | None = None,
    activations: str | None = None,
    sample: str | None = None,
) -> tuple[Any, Any]:
    """Load a text-generating model (causal, multimodal or encoder-decoder) and its tokenizer (None if it has none).

    Args:
        name: a folder or a hub id; None or "bundled" for the bundled story model.
        dtype: a torch dtype's name or "auto"; None for float32 on a CPU, the checkpoint's own elsewhere.
        device: a torch device, or "auto" to spread the model (accelerate); None for an accelerator if there is one.
        attention: transformers' attn_implementation; None for its default.
        quantize: "int8" or "int4" to round the matrices of a floating-point checkpoint, on a CPU; None to leave them.
            The model's `quantized_summary` reports the result. Quantised checkpoints need no option: on a CPU those of
            GPTQ, AWQ, compressed-tensors and torchao are read packed.
        packed_cache: whether packed quantised weights are kept in the user's cache folder and mapped from there at the
            next start; None and True for yes.
        activations: "int8" rounds the inputs of quantised matrices by row and group of 32, "float" keeps them; None for
            int8. Refused if no weights are quantised.
        sample: text on which the quantisation loss is measured; None for a built-in one.

    Raises:
        ModelNotFoundError: no model is there, or the hub cannot be reached.
        OutOfMemoryError: the model does not fit.
        UsageError: unknown dtype, device or quantisation scheme, or a combination that is not supported.
        UnsupportedError: the checkpoint cannot be quantised, or its quantisation has no supported layout.
    """
    source = find_model(name)
    check_dtype(dtype)
    check_quantize(quantize, dtype=dtype, device=device)
    if activations not in (None, "int8", "float"):
        raise UsageError(f"activations must be int8 or float, not {activations!r}.")
    import torch

    device = device or ("cpu" if quantize else default_device())
    asked_dtype, dtype = dtype, dtype or ("float32" if device == "cpu" else "auto")
    try:
        torch.device("cpu" if device == "auto" else device)
    except RuntimeError:
        raise UsageError(f"there is no device '{device}'; try cpu, cuda, cuda:1, mps or auto.") from None
    placement = {"device_map": device} if device == "auto" else {}
    try:
        if quantize is not None or _is_packed(source, device):
            from speculant.engines.hf.quantized.loading import load_quantized
            from speculant.engines.hf.quantized.making import QuantizeRequest

            tokenizer = load_tokenizer(source, required=False)
            asked = QuantizeRequest(
                source=source,
                kind=auto_class(source),
                scheme=cast("Scheme | None", quantize),
                dtype=asked_dtype,
                attention=attention,
                keep=packed_cache is not False,
                activations="float" if activations == "float" else "int8",
                tokenizer=tokenizer,
                sample=sample,
            )
            return load_quantized(asked), tokenizer
        if activations is not None:
            raise UsageError("activations would be ignored: no weights are quantised. Leave it out, or add quantize.")
        model = auto_class(source).from_pretrained(source, dtype=dtype, attn_implementation=attention, **placement)
        if not placement:
            model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"{source} does not fit on {device}. Use a smaller dtype or --device cpu.") from error
    except SpeculantError:
        raise
    except Exception as error:  # configs, weights and hubs fail in many ways; each ends here with its reason
        raise ModelNotFoundError(_why_not(source, error)) from error
    return model.eval(), load_tokenizer(source, required=False)


def _is_packed(source: str, device: str) -> bool:
    """Return whether a checkpoint is quantised in a format that is read packed on this device.

    Raises:
        UnsupportedError: it is an output folder of `speculant quantize`, which only CPUs run.
    """
    from transformers import AutoConfig

    from speculant.engines.hf.quantized.checkpoints.formats import find_format, quantization_settings

    try:
        settings = quantization_settings(AutoConfig.from_pretrained(source))
    except (OSError, ValueError):  # an adapter's folder, or an error that loading the model explains best
        return False
    return settings is not None and find_format(settings, device) is not None


def auto_class(source: str) -> Any:
    """Return transformers' auto class for a model's config: causal, multimodal, or encoder-decoder."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError):  # an adapter's folder, or an error that the class itself explains best
        return transformers.AutoModelForCausalLM
    if getattr(config, "is_encoder_decoder", False):  # some also have a causal class of the decoder alone
        kinds: tuple[str, ...] = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
    else:
        kinds = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")
    known = [getattr(transformers, kind) for kind in kinds if hasattr(transformers, kind)]
    return next((kind for kind in known if type(config) in kind._model_mapping), transformers.AutoModelForCausalLM)


def outline_model(name: str | None) -> Any:
    """Return a model of a folder's or a hub id's config without weights, on the device "meta".

    Raises:
        ModelNotFoundError: there is none, or the hub cannot be reached.
    """
    source = find_model(name)
    import torch
    from transformers import AutoConfig

    try:
        with torch.device("meta"):
            return auto_class(source).from_config(AutoConfig.from_pretrained(source))
    except Exception as error:  # as in `load_config`
        raise ModelNotFoundError(_why_not(source, error)) from error


def estimate_bytes(name: str | None, *, dtype: str | None = None, device: str | None = None) -> int:
    """Return how many bytes the weights of a model should take once it is loaded with these options, see `load_model`.

    Quantised checkpoints count as if they were not.

    Raises:
        ModelNotFoundError: there is none, or the hub cannot be reached.
    """
    path = Path(name or "")
    if begins_as_gguf(path):
        return path.stat().st_size
    import torch

    outline = outline_model(name)
    asked = dtype or ("float32" if (device or default_device()) == "cpu" else "auto")
    own = getattr(outline.config, "dtype", None) or torch.float32
    size: int = (own if asked == "auto" else getattr(torch, asked)).itemsize
    return size * sum(int(weight.numel()) for weight in outline.parameters())


def load_config(source: str) -> Any:
    """Load the config of a causal LM from a folder or the hub.

    Raises:
        ModelNotFoundError: there is none, or the hub cannot be reached.
    """
    source = find_model(source)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source).get_text_config(decoder=True)
    except Exception as error:  # hubs and configs fail in many ways; each ends here with its reason
        raise ModelNotFoundError(_why_not(source, error)) from error


def load_tokenizer(source: str | None = None, *, required: bool = True) -> Any:
    """Load a tokenizer from a folder, a file, the hub or the bundled model ("bundled"), which its draft model shares.

    SentencePiece and tiktoken files only encode and decode text, see `speculant.engines.hf.tokenizer_files`; a GGUF
    file has a complete tokenizer.

    Raises:
        TokenizerError: a tokenizer is required and there is none.
        ModelError, UnsupportedError: a GGUF file that is damaged, or whose tokenizer is of an unsupported kind.
    """
    source = find_tokenizer(source)
    if begins_as_gguf(source):
        from speculant.engines.hf.quantized.gguf.loading import load_gguf_tokenizer

        return load_gguf_tokenizer(Path(source))
    if Path(source).is_file():
        return load_tokenizer_file(Path(source))
    names = [file.name for file in Path(source).iterdir()] if Path(source).is_dir() else None
    if names is not None and not any(part in name for name in names for part in _OF_TOKENIZERS):
        if not required:  # transformers would create an empty tokenizer for some classes
            return None
        raise TokenizerError(f"no tokenizer in {source}: it has no tokenizer file. Name a folder with tokenizer.json.")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # whatever a broken tokenizer raises, the remedy is the same
        if not required:
            return None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        advice = "Name a folder that has tokenizer.json." if Path(source).exists() else hub_advice()
        raise TokenizerError(f"no tokenizer in {source}: {first.rstrip('.')}. {advice}") from error


def load_processor(name: str | None, model: Any) -> Any:
    """Return the processor of a model that takes images or other media; None if there is none or it cannot be used.

    Args:
        name: where the model was loaded from.
        model: a transformers model.
    """
    hears = getattr(model, "main_input_name", "") == "input_features"
    if model.config.get_text_config(decoder=True) is model.config and not hears:
        return None
    from transformers import AutoProcessor

    try:
        found = AutoProcessor.from_pretrained(find_model(name))
    except Exception:  # missing files or packages: text can be decoded without them
        logger.info("%s has no processor that can be used here", name, exc_info=True)
        return None
    return found if hasattr(found, "tokenizer") else None


def default_device() -> str:
    """Return "cuda" or "mps" if available, else "cpu"."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _why_not(source: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if Path(source).exists():
        return f"the model in {source} cannot be loaded: {reason}"
    return (
        f"there is no folder {source}, and no model of that name could be fetched from the hub: {reason.rstrip('.')}. "
        f"{hub_advice()}"
    )
