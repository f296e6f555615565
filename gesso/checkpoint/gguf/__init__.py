"""GGUF, the format of llama.cpp (specified in github.com/ggml-org/ggml): one file with everything.

- `file`: parse the header into metadata and a table of tensors. `types`: sizes of the blocks of each tensor type.
- `blocks`: unpack each type, bit for bit as the `gguf` package does. `native`: blocks to formats of the kernels.
- `recipes`: the model's parameters from the tensors of a file.
- `companions`: config.json, generation_config.json and the tokenizer files, from the metadata and `tokenizer`.
- `convert`: `gesso quantize --format gguf`. `write`: write a file. `choose`: the type of each tensor. `quantize`: round
  weights to blocks. `keys`: the metadata.
"""
