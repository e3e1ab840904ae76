"""Published figures that the planner is held against, with their sources. Data only."""

from minipar.planner import Split, Transformer

# Narayanan et al. 2021 (arXiv:2104.04473), table 1: A100 80 GB, sequences of 2,048, vocabulary of 51,200, full recomputation.
# name: (layers, width, heads, tp, pp, dp, batch, billions of parameters, achieved Tflop/s per GPU); microbatch and chunks are
# those of the authors' own run scripts.
MEGATRON_2021 = {
    "1.7B": (24, 2304, 24, 1, 1, 32, 512, 1.65, 137, 16, 1),
    "7.5B": (36, 4096, 32, 4, 1, 32, 512, 7.47, 142, 16, 1),
    "39.1B": (48, 8192, 64, 8, 2, 32, 1536, 39.1, 138, 4, 1),
    "145.6B": (80, 12288, 96, 8, 8, 24, 2304, 145.62, 148, 2, 2),
    "529.6B": (105, 20480, 128, 8, 35, 9, 2520, 529.6, 163, 1, 3),
}

# Korthikanti et al. 2022 (arXiv:2205.05198), table 5: A100, seconds with full recomputation and with sequence parallelism and
# selective recomputation; MFU and HFU in percent of the latter.
# name: (layers, width, heads, pp, chunks, batch, microbatch, seconds full, seconds selective, MFU, HFU); tp 8 throughout
KORTHIKANTI = {
    "22B": (48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10, 41.5, 43.7),
    "530B": (105, 20480, 128, 35, 3, 280, 1, 49.05, 37.83, 56.0, 57.0),
}

# The same paper's figure 1: GiB of activations of the first stage without and with both of its techniques.
KORTHIKANTI_GIB = {"22B": (59.25, 9.5625), "530B": (114.0234375, 23.076171875)}

# Smith et al. 2022 (arXiv:2201.11990), section 2.4: 530 B parameters on 2,240 A100. Predicted 21 % too short, and so are the other
# two runs of that paper (50.2 s at dp 10, 44.4 s at dp 12: 22 and 24 %). The three lie on a line in the number of slots, m + p - 1:
# 0.196 s a slot, and 6.3 s in every step besides. Predicted are 0.168 s and 1.2 s (gradient sync and optimizer). Megatron-LM's run
# of the same layers (529.6B above) leaves at most 0.186 s for a slot, all that follows included: what the engine of this run spends
# beyond that is in no published formula, so none of it is modelled.
MT_NLG = (105, 20480, 128, 8, 35, 8, 1920, 50272, 60.1)

# vTrain (Bang et al. 2024), measured multi-node runs: layers, width, heads, tp, pp, dp, batch, microbatch, milliseconds
VTRAIN = [
    (30, 3072, 32, 1, 1, 64, 512, 8, 3566.5),
    (40, 6144, 48, 4, 2, 32, 1024, 2, 10031.6),
    (96, 12288, 96, 4, 32, 4, 1536, 2, 53909.6),
]

# NVIDIA Megatron-Core's table for H100 SXM: sequences of 4,096, vocabulary of 131,072. Microbatches, chunks and ZeRO stage are not
# in it: those that ``rows`` takes, and the chunks of Llama 3 below, are assumptions.
# name: (layers, width, heads, tp, pp, dp, batch, Tflop/s per GPU, MFU in percent)
MEGATRON_H100 = {
    "1.7B": (24, 2048, 16, 1, 1, 48, 192, 408.8, 41),
    "16B": (32, 6144, 48, 4, 1, 48, 192, 489.1, 49),
    "70B": (84, 8192, 64, 8, 2, 48, 384, 419.7, 42),
    "177B": (96, 12288, 96, 8, 6, 48, 1152, 432.8, 44),
}

# Llama 3 (arXiv:2407.21783), table 4: 405 B, 8,192 H100, 32 sequences of 8,192 tokens per data-parallel rank, 430 Tflop/s per GPU
LLAMA_405B = Transformer(
    126, 16384, 128, 128_256, 8192, kv_heads=8, ffn=53_248, gated=True, biases=False, learned_positions=False, tied=False
)  # fmt: skip
LLAMA_405B_SPLIT = Split(64 * 32, dp=64, pp=16, tp=8, chunks=7, zero=2)
LLAMA_405B_TFLOPS, LLAMA_405B_MFU = 430, 43


def megatron(layers: int, width: int, heads: int, seq: int = 2048, vocab: int = 51_200) -> Transformer:
    return Transformer(layers, width, heads, vocab, seq)


def unfused(batch: int, **sizes: int | str | bool) -> Split:
    """As Megatron-LM ran in 2021 and 2022: scores in memory, everything recomputed, no sequence parallelism unless said."""
    return Split(batch, **({"sequence_parallel": False, "recompute": "full", "fused_attention": False} | sizes))  # type: ignore[arg-type]


Row = tuple[str, Transformer, Split, str, float]


def _seconds(model: Transformer, split: Split, tflops: float) -> float:
    flops = model.hardware_flops(split.batch * model.seq, split.recompute)
    return flops / split.ranks / (tflops * 1e12)


def rows() -> list[Row]:
    """Every published step time: ``(name, model, split, hardware, seconds)``."""
    found: list[Row] = []
    for name, (layers, width, heads, tp, pp, dp, batch, _, tflops, microbatch, chunks) in MEGATRON_2021.items():
        model, split = megatron(layers, width, heads), unfused(batch, dp=dp, pp=pp, tp=tp, microbatch=microbatch, chunks=chunks)
        found.append((f"megatron {name}", model, split, "a100-nvlink", _seconds(model, split, tflops)))
    for name, (layers, width, heads, pp, chunks, batch, microbatch, full, selective, _, _) in KORTHIKANTI.items():
        model = megatron(layers, width, heads)
        sizes = {"pp": pp, "tp": 8, "microbatch": microbatch, "chunks": chunks}
        found.append((f"korthikanti {name} full", model, unfused(batch, **sizes), "a100-nvlink", full))
        lean = unfused(batch, **sizes, sequence_parallel=True, recompute="selective")
        found.append((f"korthikanti {name} selective", model, lean, "a100-nvlink", selective))
    layers, width, heads, tp, pp, dp, batch, vocab, seconds = MT_NLG
    split = unfused(batch, dp=dp, pp=pp, tp=tp)
    found.append(("mt-nlg", megatron(layers, width, heads, vocab=vocab), split, "a100-nvlink", seconds))
    for layers, width, heads, tp, pp, dp, batch, microbatch, ms in VTRAIN:
        split = unfused(batch, dp=dp, pp=pp, tp=tp, microbatch=microbatch)
        found.append((f"vtrain {width} {split}", megatron(layers, width, heads), split, "a100-nvlink", ms / 1e3))
    for name, (layers, width, heads, tp, pp, dp, batch, tflops, _) in MEGATRON_H100.items():
        model = megatron(layers, width, heads, 4096, 131_072)
        chunks = {1: 1, 2: 6, 6: 8}[pp]
        split = Split(batch, dp=dp, pp=pp, tp=tp, microbatch={1: 4, 4: 2, 8: 1}[tp], chunks=chunks, zero=1)
        found.append((f"megatron h100 {name}", model, split, "h100-nvlink-ib", _seconds(model, split, tflops)))
    llama = _seconds(LLAMA_405B, LLAMA_405B_SPLIT, LLAMA_405B_TFLOPS)
    found.append(("llama 3 405B", LLAMA_405B, LLAMA_405B_SPLIT, "h100-nvlink-ib", llama))
    return found
