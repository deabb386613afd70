import pytest
import torch

from mlpip_bench.nn.decoder import ImageDecoder


@pytest.mark.parametrize(
    ("shape", "start", "doublings"),
    [
        ((1, 28, 28), (7, 7), 2),
        ((3, 32, 32), (4, 4), 3),
        ((3, 84, 84), (6, 6), 4),
        ((1, 8, 8), (4, 4), 1),
        ((3, 30, 45), (4, 6), 3),  # neither even nor square
        ((1, 105, 105), (7, 7), 4),
        ((12, 1, 1), (1, 1), 0),
    ],
)
def test_images_of_any_size_are_decoded_from_any_number_of_dimensions(shape, start, doublings):
    torch.manual_seed(0)
    decoder = ImageDecoder(shape, 5)
    assert (decoder.start[1:], len(decoder.doublings)) == (start, doublings)
    inputs = torch.randn(2, 3, 4, 5)
    images = decoder(inputs)
    assert images.shape == (2, 3, 4, *shape)
    torch.testing.assert_close(images[1, 2], decoder(inputs[1, 2]))


def test_every_pixel_depends_on_what_is_decoded_and_no_value_is_out_of_reach():
    torch.manual_seed(0)
    images = ImageDecoder((2, 28, 28), 3)(100 * torch.randn(50, 3))
    assert (images.std(0) > 0).all()
    assert images.min() < -1
    assert images.max() > 1
