"""Make a tiny random-weight Llama and its tokenizer: make_model.py DIR [LAYERS HIDDEN]. Run with an engine's Python."""

import sys

import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # type: ignore[import-not-found]

SENTENCES = ["The quick brown fox jumps over the lazy dog.", "Pods drain when requests end."]
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def main(out: str, layers: int = 2, hidden: int = 64) -> None:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        SENTENCES * 5,
        trainers.BpeTrainer(
            vocab_size=2000,
            special_tokens=["<unk>", "<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=8192
    )
    fast.chat_template = CHAT
    fast.save_pretrained(out)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=max(512, tokenizer.get_vocab_size()),
            hidden_size=hidden,
            intermediate_size=hidden * 2,
            num_hidden_layers=layers,
            num_attention_heads=max(2, hidden // 32),
            num_key_value_heads=max(1, hidden // 64),
            head_dim=32,
            max_position_embeddings=8192,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:4]))
