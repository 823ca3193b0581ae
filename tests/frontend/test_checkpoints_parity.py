"""Checkpoints and tokenizers that transformers writes are read as transformers reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.chat import render
from ostinato.frontend.checkpoints import HEAD, open_checkpoint
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.tokenizer import StreamDecoder
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import TEXTS, train

pytestmark = pytest.mark.parity

_TEMPLATE = (
    "{%- for message in messages %}\n    {%- if loop.first %}{{ bos_token }}{% endif %}\n"
    "<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ {'é': '<'} | tojson }}"
)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "changes"), [("Llama", {"head_dim": 32, "attention_bias": True}), ("Qwen2", {})])
def test_saved_models_are_read_bit_exactly(
    tmp_path: Path, seed: int, family: str, changes: dict[str, Any], dtype: str, tied: bool
) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    keys = small_config(family.lower(), model_type=..., torch_dtype=..., tie_word_embeddings=tied, **changes)
    torch.manual_seed(seed % 2**31)
    config = getattr(transformers, f"{family}Config")(**keys)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    state = model.state_dict()
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        found = checkpoint.config
        assert set(checkpoint.tensors) == set(state) - ({HEAD} if tied else set())
        for name in checkpoint.tensors:
            assert checkpoint.tensors[name].shape == tuple(state[name].shape)
            assert checkpoint.map(name).tobytes() == state[name].contiguous().view(torch.uint8).numpy().tobytes()
        assert checkpoint.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (found.tie_word_embeddings, found.norm_eps) == (tied, 1e-5)
    assert found.rotary == Rotary(width=found.head_dim)
    assert found.dtype is not None
    assert found.dtype.value == {"float32": "f32", "bfloat16": "bf16"}[dtype]


@pytest.mark.parametrize("add_bos", [False, True, None])
def test_saved_tokenizers_encode_decode_and_render_the_same(tmp_path: Path, seed: int, add_bos: bool | None) -> None:
    transformers = importlib.import_module("transformers")
    config = small_config(num_hidden_layers=1)
    write_hf_checkpoint(tmp_path, config, random_model(config, seed))
    extra = {} if add_bos is None else {"add_bos_token": add_bos}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train("qwen2"), bos_token="<|im_start|>", eos_token="<|im_end|>", **extra
    )
    theirs.chat_template = _TEMPLATE
    theirs.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, FAMILIES)
    ours = checkpoint.tokenizer()
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in [*TEXTS, "<|im_start|>user\nhi<|im_end|><tool_call>"]:
        ids = ours.encode(text, parse_special=True)
        assert ids == theirs(text)["input_ids"], text
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
        decoder = StreamDecoder(ours)
        assert "".join(map(decoder.push, ids)) + decoder.flush() == ours.decode(ids)
    messages = [{"role": "user", "content": " Größe? "}, {"role": "assistant", "content": "12"}]
    assert checkpoint.chat_template is not None
    for prompt in (False, True):
        text = render(
            checkpoint.chat_template, messages, add_generation_prompt=prompt, special_tokens=checkpoint.special_tokens
        )
        assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
