"""Models as ordered lists of layers; `outline` is free of torch, the builders are not."""
