"""The pieces of prompts: they depend on the prompt alone, and images are never cut."""

import random

from gesso.engine.pieces import Cuts, cut
from gesso.images.tokens import blocks, image_tokens, is_image


def cuts_of(prompt: tuple[int, ...], piece: int) -> Cuts:
    return cut(len(prompt), blocks(prompt), piece)


def mixed(generator: random.Random) -> tuple[int, ...]:
    """Return a prompt of texts and images, all from a few: prompts often have a common beginning."""
    parts = [image_tokens(7, 5), image_tokens(9, 3), (1,), (2, 3), (1, 2, 3, 4), (4,) * 9]
    return tuple(token for _ in range(generator.randrange(1, 7)) for token in generator.choice(parts))


def test_text_is_cut_at_equal_lengths():
    prompt = tuple(range(700))
    cuts = cut(700, (), 256)
    assert cuts.pieces(prompt, 0) == [prompt[:256], prompt[256:512], prompt[512:]]
    assert cuts.pieces(prompt, 256) == [prompt[256:512], prompt[512:]]
    assert cuts.pieces(prompt[:512], 512) == []
    assert list(cuts.whole) == [256, 512] and cuts.last(700) == 512 and cuts.last(511) == 256 and cuts.last(255) == 0
    assert isinstance(cuts.whole, range), "a long prompt takes no time"


def test_an_image_is_one_piece_and_text_is_counted_from_its_end():
    first, second = image_tokens(7, 5), image_tokens(9, 3)
    prompt = (*range(6), *first, *second, *range(9), *first, 1)
    cuts = cuts_of(prompt, 4)
    assert cuts.pieces(prompt, 0) == [
        (0, 1, 2, 3),
        (4, 5),
        first,
        second,
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8,),
        first,
        (1,),
    ]
    assert list(cuts.whole) == [4, 6, 11, 14, 18, 22, 23, 28]


def test_prompts_that_are_cut_at_the_same_place_have_the_same_pieces_before_it():
    generator = random.Random(0)
    prompts = [mixed(generator) for _ in range(120)]
    shared = 0
    for one in prompts:
        pieces = cuts_of(one, 4).pieces(one, 0)
        assert tuple(token for piece in pieces for token in piece) == one
        assert all(len(piece) <= 4 or is_image(piece[0]) for piece in pieces)
        assert all(len(set(map(is_image, piece))) == 1 for piece in pieces)
        for other in prompts:
            cuts = cuts_of(other, 4)
            for end in cuts.whole:
                if cuts_of(one, 4).has(end) and one[:end] == other[:end]:
                    shared += one != other
                    assert cuts.pieces(other[:end], 0) == cuts_of(one, 4).pieces(one[:end], 0)
    assert shared > 100


def test_a_longer_prompt_keeps_the_pieces_of_its_beginning():
    generator = random.Random(1)
    for _ in range(100):
        prompt = mixed(generator)
        text_after = (*prompt, 1, 2, 3)
        # Where an image begins, only a prompt with an image is cut.
        assert all(cuts_of(text_after, 4).has(end) for end in cuts_of(prompt, 4).whole)
