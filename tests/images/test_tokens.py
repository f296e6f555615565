"""The soft tokens of images in a prompt."""

from gesso.images.tokens import blocks, image_of, image_tokens, is_image


def test_a_soft_token_names_its_image_and_place():
    digest = 2**128 - 3
    tokens = image_tokens(digest, 1120)
    assert all(map(is_image, tokens)) and not is_image(0)
    assert [image_of(token) for token in tokens] == [(digest, place) for place in range(1120)]


def test_blocks_separate_images_also_when_they_touch_or_are_equal():
    first, other = image_tokens(7, 3), image_tokens(8, 2)
    assert blocks((5, *first, 6, *other)) == [range(1, 4), range(5, 7)]
    assert blocks((*first, *other, *first, *first)) == [range(0, 3), range(3, 5), range(5, 8), range(8, 11)]
    assert blocks((1, 2, 3)) == [] == blocks(())


def test_a_part_of_an_image_is_a_block_of_its_own():
    tokens = image_tokens(7, 5)
    assert blocks((*tokens[:2], *tokens[3:])) == [range(0, 2), range(2, 4)]
