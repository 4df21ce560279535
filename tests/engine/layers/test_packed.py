"""Four-bit weights: read as the `gguf` package reads them, and a product close to the exact one for small batches."""

import gguf
import numpy as np
import pytest
import torch

from pagefleet_engine.layers.packed import MOST_ROWS, BlockWeights, pack, stack_rows
from pagefleet_engine.weights.gguf_file import GgufFile


@pytest.fixture
def file(tmp_path):
    """A GGUF file with one Q4_1 matrix of 96 rows and 64 columns, and one in fp32."""
    values = np.random.default_rng(3).normal(size=(96, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("q", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("f", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(tmp_path / "m.gguf")


def test_blocks_hold_the_weights_that_gguf_reads(file):
    assert torch.equal(file.block_weights("q").values(), file.tensor("q"))


def test_another_kind_of_tensor_has_no_blocks(file):
    assert file.block_weights("f") is None


@pytest.mark.parametrize("num_rows", [1, 5, MOST_ROWS, MOST_ROWS + 1])
def test_the_product_is_that_of_the_same_weights(file, num_rows):
    weights = file.block_weights("q")
    exact = file.tensor("q")
    x = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    got = pack(weights, exact.to(torch.bfloat16))(x).float()
    # bf16 rounds each of 64 weights by at most 2**-9 of itself: a standard deviation of about 0.01 in the sum; six of
    # them. The result is rounded by 2**-9 of itself once more.
    torch.testing.assert_close(got, x.float() @ exact.t(), rtol=2**-8, atol=0.06)


def test_rows_move_and_stack_with_their_scales(file):
    weights = file.block_weights("q")
    order = torch.arange(95, -1, -1)
    assert torch.equal(weights.select_rows(order).values(), weights.values().flip(0))
    both = stack_rows([weights, weights])
    assert torch.equal(both.values(), weights.values().repeat(2, 1))


def test_values_are_scale_times_code_plus_minimum():
    codes = torch.arange(32, dtype=torch.uint8).remainder(16)[None]
    weights = BlockWeights(codes, torch.tensor([[0.5]]), torch.tensor([[-2.0]]))
    assert weights.values()[0, :4].tolist() == [-2.0, -1.5, -1.0, -0.5]
