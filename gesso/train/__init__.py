"""Training and fine-tuning from a recipe: `gesso train RECIPE`.

- `recipe`: the TOML schema. `run`: from a recipe to a trained model. `trainer`: the loop. `shared_recipe`: the recipe
  beside an exported model.
- `state`: checkpoints of a run. `resuming`, `inputs`: which settings and files may change before it is resumed.
- `files`, `rows`, `reading`, `data`: from JSON lines to examples. `views` and `order`: which part of a text an example
  shows, and which examples share a batch. `data_report`: what `--check` prints.
- `image_rows`, `image_store`: images in rows, read and stored once. `seeing`: what the vision tower makes of them.
- `batch`: examples as tensors, and their noise. `layout`: their tokens as one sequence. `objective`: the loss.
- `attention`, `blocks`: attention of a training pass, without scores of all pairs in memory.
- `optimizers`, `muon`, `metrics`, `processes`: parts of the loop.
- `rollout`: a differentiable denoising run, for research.
"""
