"""The models of examples/data_parallel and examples/common in Python, with the first weights and batches of
bench/ours/ddp_models.cc.

Layers have the order of the C++ models, and so have the parameters: a first weight depends on its place among them.
"""

import csv
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "digits.csv"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")  # as in examples/common/text_file.h
VOCABULARY, LENGTH, LAYERS, WIDTH, HEADS = 256, 128, 4, 256, 4  # as in examples/common/causal_transformer.h


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.wide_norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, states):
        texts, length, width = states.shape
        split = self.queries_keys_values(states).view(texts, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        return self.attended(seen.transpose(1, 2).reshape(texts, length, width))

    def forward(self, states):
        attended = states + self.attend(self.attention_norm(states))
        return attended + self.narrow(functional.gelu(self.widen(self.wide_norm(attended))))


class CausalTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        states = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            states = block(states)
        return self.logits(self.norm(states))


class DigitCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = nn.Conv2d(1, 32, 3, padding=1)
        self.shapes = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 4 * 4, 128)
        self.logits = nn.Linear(128, 10)

    def forward(self, images):
        shapes = self.shapes(self.edges(images).relu()).relu()
        return self.logits(self.hidden(torch.max_pool2d(shapes, 2).flatten(1)).relu())


class TransformerCase:
    """What differs between the two cases. `pairs`: timed pairs of steps for each repetition that was asked for."""

    batch, stride, pairs, learning_rate = 16, 97, 2, 0.02
    make_model = CausalTransformer

    def __init__(self):
        if not TEXT.is_file():
            raise SystemExit(f"{TEXT}: there is no such file; Debian's package base-files has it")
        self.windows = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).unfold(0, LENGTH + 1, 1)
        self.size = len(self.windows)

    def get_batch(self, samples):
        texts = self.windows[samples].long()
        return texts[:, :-1].contiguous(), texts[:, 1:].contiguous()

    def loss_of(self, model, data, target):
        return functional.cross_entropy(model(data).flatten(0, 1), target.flatten())


class CnnCase:
    batch, stride, pairs, learning_rate = 64, 1, 20, 0.1
    make_model = DigitCnn

    def __init__(self):
        with open(DIGITS, newline="", encoding="ascii") as file:
            rows = torch.tensor([[int(value) for value in row] for row in list(csv.reader(file))[1:]])
        self.images, self.labels = rows[:, :64].float().view(-1, 1, 8, 8) / 16, rows[:, 64]
        self.size = len(rows)

    def get_batch(self, samples):
        return self.images[samples], self.labels[samples]

    def loss_of(self, model, data, target):
        return functional.cross_entropy(model(data), target)


CASES = {"transformer": TransformerCase, "cnn": CnnCase}


def hashed(first, count):
    """Numbers from -1 to 1."""
    bits = torch.arange(first, first + count)
    for _ in range(2):
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    bits = bits ^ (bits >> 16)
    return bits.double() / 2**31 - 1


def fill_parameters(model):
    first = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            count = parameter.numel()
            if parameter.dim() > 1:
                parameter.copy_(hashed(first, count).view_as(parameter) / math.sqrt(count / parameter.shape[0]))
            else:
                parameter.fill_(0 if name.endswith("bias") else 1)
            first += count


def samples_of(case, step, rank, ranks):
    first = (step * ranks + rank) * case.batch
    return (torch.arange(first, first + case.batch) * case.stride) % case.size
