"""The inputs that transformers' `generate` prepares for its decoding loop, checked for what ours supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.prepared_request import PreparedRequest
from speculant.core.sampler import GREEDY, Sampling
from speculant.engines.hf.sampling.own_config import DECIDING, leave_out_modes

HANDLED = {
    *("attention_mask", "position_ids", "past_key_values", "cache_params", "use_cache"),
    *("logits_to_keep", "cache_position"),
}
NEED_SAMPLING = ("do_sample", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")

HANDLED_OF_DECODERS = {
    *("decoder_attention_mask", "decoder_position_ids", "past_key_values", "use_cache", "logits_to_keep"),
    "cache_position",
}


class GenerateCall:
    """Replaces the decoding loop: stores its arguments and decodes nothing.

    Ids Int64[1, T] before `start` are padding that the target need not read; processors and criteria see it. `source`
    has what an encoder reads, by name, if known. `inputs` are all inputs of the model, `others` those unknown to our
    loop, and `prepare_inputs` is a replacement of the model's own `prepare_inputs_for_generation`, else None.
    """

    start = 0
    model: Any
    ids: Tensor
    processors: list[Any]
    criteria: list[Any]
    config: Any
    cache: Any
    padding: Tensor | None
    positions: Tensor | None
    source: Mapping[str, Tensor] | None = None
    others: dict[str, Any]
    inputs: dict[str, Any]
    prepare_inputs: Any

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor:
        """Receive the call of `generate`; the signature is that of its decoding methods."""
        self.model, self.ids, self.config = model, input_ids, generation_config
        self.processors, self.criteria = list(logits_processor), list(stopping_criteria)
        self.cache = model_kwargs.get("past_key_values", model_kwargs.get("cache_params"))
        handled, axes = HANDLED, None
        if model.config.is_encoder_decoder:  # other masks and positions belong to the encoder
            handled = HANDLED_OF_DECODERS
            self.padding, self.positions = model_kwargs.get("decoder_attention_mask"), None
        else:
            self.padding, self.positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
        if self.positions is not None and self.positions.ndim > 2:  # [A, B, T], equal for text
            axes = self.positions if (self.positions != self.positions[:1]).any() else None
            self.positions = self.positions[0]
        self.others = {
            name: value for name, value in model_kwargs.items() if name not in handled and _has_information(name, value)
        }
        if axes is not None:
            self.others["position_ids"] = axes
        if model_kwargs.get("use_cache") is False:
            self.others["use_cache"] = False
        self.inputs = model_kwargs
        put = vars(model).get("prepare_inputs_for_generation")
        own = type(model).prepare_inputs_for_generation
        self.prepare_inputs = None if getattr(put, "__func__", None) is own else put
        return input_ids

    def text(self) -> dict[str, Any]:
        """Return the arguments of `ModelEngine.open` for the text that the target reads."""
        padding, positions = (
            None if each is None else each[:, self.start :] for each in (self.padding, self.positions)
        )
        return {"ids": self.ids[:, self.start :], "cache": self.cache, "padding": padding, "positions": positions}


def prepare_call(entry: Any, ids: Tensor, **options: Any) -> GenerateCall:
    """Return what a model's `generate` prepares for a prompt Int64[1, T] and its options.

    Raises:
        UsageError: transformers rejects the options.
    """
    call = GenerateCall()
    try:
        entry.generate(input_ids=ids, custom_generate=call, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"transformers refuses these options: {error}") from error
    given = options.get("logits_processor") or ()
    if any(all(each is not kept for kept in call.processors) for each in given):
        raise UsageError(
            f"the `generate` of {type(entry).__name__} passes no logits processors on, so those of penalties and your "
            "own would be ignored; leave them out."
        )
    return call


def _has_information(name: str, value: Any) -> bool:
    """Return whether an input carries information: it is not empty, and not only text token types."""
    if value is None or (isinstance(value, Mapping) and not value):
        return False
    return not (name.endswith("token_type_ids") and isinstance(value, Tensor) and not value.any())


def check(call: GenerateCall, *, plain: bool = False) -> None:
    """Check the requested features of a call with any number of rows.

    Args:
        call: see above.
        plain: whether it is decoded by the model's own methods, which support all of the model's inputs.

    Raises:
        UnsupportedError: it requests something that our loop does not support; the message says what to omit.
    """
    config = call.config
    mode = config.get_generation_mode()
    if config.num_beams > 1 or mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        own = call.model.generation_config
        without = [each for each in leave_out_modes(own).items() if each[0] in DECIDING]
        modes = [f"{name}={value}" for name, value in without if getattr(config, name) == getattr(own, name)]
        way = f"If the model's generation config asks for that, give {', '.join(modes)}"
        raise UnsupportedError(
            f"speculative decoding is greedy or sampled, not {mode.value.replace('_', ' ')} with "
            f"num_beams={config.num_beams}. {way if modes else 'Leave that out'}, or call `model.generate` without "
            "custom_generate."
        )
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        raise UnsupportedError(
            "attentions and hidden states are not returned: a pass over a tree has none per token. "
            "Leave out output_attentions and output_hidden_states."
        )
    if "use_cache" in call.others and not plain:
        raise UnsupportedError(
            "drafts are verified with a cache: leave out use_cache=False. If the model's generation config has it, set "
            "`model.generation_config.use_cache` to True."
        )
    if call.others and not plain:
        raise UnsupportedError(
            f"these inputs are not supported here: {', '.join(sorted(call.others))}. Leave them out, or call "
            "`model.generate` without custom_generate."
        )


def check_alone(call: GenerateCall, *, plain: bool = False) -> None:
    """Check a call of one row, as `check` does.

    Raises:
        UnsupportedError: it has several rows, or requests something that our loop does not support.
    """
    check(call, plain=plain)
    if call.ids.shape[0] != 1:
        raise UnsupportedError(
            f"{call.ids.shape[0]} sequences were asked for, but one is decoded. Use `model.generate` with "
            "custom_generate, or give `Speculator.generate_batch` a prompt for each."
        )


def make_request(call: GenerateCall, *, stop: Sequence[str] = (), notes: Sequence[str] = ()) -> PreparedRequest:
    """Return a call as a request.

    Args:
        call: a call of one row; of several rows, the request can only be asked whether drafts can be verified on it.
        stop: strings that end the text.
        notes: messages for the user.
    """
    config, wanted = call.config, call.config.return_dict_in_generate
    lengths = [each.max_length for each in call.criteria if type(each) is MaxLengthCriteria]
    ends = [each.eos_token_id.tolist() for each in call.criteria if type(each) is EosTokenCriteria]
    return PreparedRequest(
        ids=call.ids,
        max_length=min(lengths, default=1 << 30),
        ends=frozenset(token for ids in ends for token in ids),
        sampling=_sampling_settings(config),
        processors=call.processors,
        criteria=[each for each in call.criteria if type(each) not in (MaxLengthCriteria, EosTokenCriteria)],
        keeps_scores=bool(wanted and config.output_scores),
        keeps_logits=bool(wanted and config.output_logits),
        start=call.start,
        padding=call.padding,
        source_ids=None if call.source is None else call.source.get("input_ids"),
        chunk=config.prefill_chunk_size,
        stop=stop,
        notes=notes,
        model=call.model,
        own=call,
    )


def _sampling_settings(config: Any) -> Sampling:
    if config.get_generation_mode() != GenerationMode.SAMPLE:
        return GREEDY
    return Sampling(
        temperature=1.0 if config.temperature is None else float(config.temperature),
        top_k=config.top_k or None,
        top_p=config.top_p if config.top_p is not None and config.top_p < 1 else None,
        min_p=config.min_p,
    )


def sampling_options(
    temperature: float | None, top_p: float | None, top_k: int | None, **options: Any
) -> dict[str, Any]:
    """Translate sampling options to those of `generate`, where do_sample decides.

    Args:
        temperature, top_p, top_k: None if not given.
        options: other given options.

    Raises:
        UsageError: sampling options together with greedy decoding, or a negative temperature.
    """
    if temperature is not None and temperature < 0:
        raise UsageError(f"temperature must be 0 or more, not {temperature}.")
    given = {name: value for name, value in (("top_p", top_p), ("top_k", top_k)) if value is not None}
    if temperature == 0:
        ignored = [*given, *(name for name in NEED_SAMPLING if options.get(name))]
        if ignored:
            raise UsageError(f"without sampling {' and '.join(ignored)} would be ignored; set a temperature above 0.")
        return {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    if temperature is None and not given:
        return {}
    return {"do_sample": True, "temperature": 1.0 if temperature is None else temperature, **given}
