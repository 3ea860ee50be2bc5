"""One training step, shiftbound against x-transformers and torch's nn.TransformerEncoder. Run by hand:

    pip install -e ".[bench]" && python tests/benchmarks/bench_step.py

Equal size (depth, width, heads, MLP, vocabulary), fp32, one thread, and for all of them the loss and the optimiser of
the protocol, so that only the models differ. The contestants take turns step by step, so that whatever else the machine
does falls on all of them alike, and the medians are compared. nn.TransformerEncoder has no position encoding of its
own: it gets a learned table, and in the rotary row it runs without any position, which only favours it.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from shiftbound.optimiser import Optimiser
from shiftbound.transformer import Transformer

VOCAB, CLASSES = 5, 3


class Torch(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, positions: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.table = nn.Parameter(torch.randn(512, width)) if positions else None
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        x, n = self.embed(tokens), tokens.shape[1]
        x = x if self.table is None else x + self.table[:n]
        return self.head(self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True))


def xtransformers(depth: int, width: int, heads: int, rotary: bool, flash: bool) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=VOCAB,
        max_seq_len=512,
        logits_dim=CLASSES,
        use_abs_pos_emb=not rotary,
        attn_layers=Decoder(
            dim=width,
            depth=depth,
            heads=heads,
            attn_dim_head=width // heads,
            attn_flash=flash,
            rotary_pos_emb=rotary,
            rotary_emb_dim=width // heads,
            ff_mult=2,
            use_layerscale=False,
        ),
    )


def stepper(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor):
    optimiser = Optimiser(model, decay=0.01)

    def step() -> float:
        start = time.perf_counter()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-1)
        optimiser.step(loss, rate=3e-3)
        return time.perf_counter() - start

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=33, help="tokens, BOS included")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, labels = torch.randint(VOCAB, (32, given.length)), torch.randint(CLASSES, (32, given.length))
    heads, size = given.width // 16, (given.depth, given.width)
    for encoding in ("ape", "rope"):
        rotary = encoding == "rope"
        models = {
            "shiftbound": Transformer(VOCAB, CLASSES, *size, encoding),
            "nn.TransformerEncoder": Torch(*size, heads, positions=not rotary),
            "x-transformers": xtransformers(*size, heads, rotary, flash=False),
            "x-transformers, flash": xtransformers(*size, heads, rotary, flash=True),
        }
        steps = {name: stepper(model, tokens, labels) for name, model in models.items()}
        seconds = {name: [] for name in steps}
        for turn in range(given.steps + 10):
            for name, step in steps.items():
                taken = step()
                if turn >= 10:
                    seconds[name].append(taken)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        print(f"{encoding}, depth {given.depth}, width {given.width}, 32 x {given.length} tokens")
        for name, median in medians.items():
            size_of = sum(p.numel() for p in models[name].parameters())
            print(f"  {name:24s} {1e3 * median:7.2f} ms a step   {size_of} parameters")
        fastest = min(value for name, value in medians.items() if name != "shiftbound")
        print(f"  ratio fastest other / shiftbound: {fastest / medians['shiftbound']:.2f} (at least 1 wanted)")


if __name__ == "__main__":
    main()
