"""Words of captions: as the public evaluation's tokeniser cuts them."""

import pytest

from corollout.tasks.captioning.text import tokenize

CASES = {
    # Case and punctuation
    "A Cat sits, then; it JUMPS!": "a cat sits then it jumps",
    "A sign says \"stop\" - or 'go' ...": "a sign says stop or go",
    "Is it a bird? A plane?? No!!": "is it a bird a plane ?? no !!",
    "  two   dogs\tand\na  bone .": "two dogs and a bone",
    "kites--three of them---in the sky": "kites three of them in the sky",
    "a bench (painted green) [empty]": "a bench -lrb- painted green -rrb- -lsb- empty -rsb-",
    "": "",
    " . ": "",
    # Apostrophes
    "the dog's ball and the boys' bats": "the dog 's ball and the boys bats",
    "it isn't raining and they can't won't DON'T stop": "it is n't raining and they ca n't wo n't do n't stop",
    "I'm sure he'd say we've seen what they'll see": "i 'm sure he 'd say we 've seen what they 'll see",
    "a clock at five o'clock near the l'Orange hotel": "a clock at five o'clock near the l'orange hotel",
    "yes ma'am, c'mon y'all": "yes ma'am c'mon y' all",
    "rock 'n' roll of the '90s, get 'em": "rock 'n' roll of the '90s get 'em",
    "a 'quoted' word and a 6' fence": "a quoted word and a 6 fence",
    "it’s “curly” – isn’t it…": "it 's curly is n't it",
    # Words in two
    "you cannot, but are gonna and gotta": "you can not but are gon na and got ta",
    "wannabe cooks": "wannabe cooks",
    # Hyphens and slashes
    "a black-and-white close-up of a T-shirt": "a black-and-white close-up of a t-shirt",
    "half- eaten, pre-and -post": "half eaten pre-and post",
    "a table/desk and/or red/white/blue shelf w/ books": "a table/desk and/or red/white/blue shelf w / books",
    "a well-lit/dark hall": "a well-lit/dark hall",
    # Full stops
    "on St. Mary and 5th Ave. by Dr. Low vs. Mr. Hay": "on st. mary and 5th ave. by dr. low vs. mr. hay",
    "the U.S. flag, an old T.V. and a D.V.D player": "the u.s. flag an old t.v. and a d.v.d player",
    "seen at 5 p.m. in the U.K.": "seen at 5 p.m. in the u.k.",
    "a dog on the grass.A cat.": "a dog on the grass.a cat",
    "a sign with the letter K.": "a sign with the letter k",
    "letter B. The letter C. stands": "letter b the letter c. stands",
    "bus no. 9, with no. Then fig. 2": "bus no. 9 with no then fig. 2",
    "in Tex. but not in tex.": "in tex. but not in tex",
    "cats, dogs, etc.": "cats dogs etc.",
    "grass., trees": "grass. trees",
    # Numbers
    "a clock at 12:43, 1,000 people, 3.5 metres": "a clock at 12:43 1,000 people 3.5 metres",
    "at 10:30am, 5pm, the 21st, a 4x4, the 1950s and 1920's": ("at 10:30 am 5pm the 21st a 4x4 the 1950s and 1920 's"),
    "2 1/2 cups, ½ a pie, a 3/4-inch bolt": "2 1/2 cups 1/2 a pie a 3/4-inch bolt",
    "the 7-piece set for $5.99 or £4 or 50%": "the 7-piece set for $ 5.99 or # 4 or 50 %",
    "on 10/29/2011 or 10-29-2011": "on 10/29/2011 or 10-29-2011",
    # Names and signs
    "a man & a woman at A&W and x&y": "a man & a woman at a&w and x & y",
    "#1 at www.example.com or me@example.com #fun @home": "# 1 at www.example.com or me@example.com #fun @home",
    "a <unk> in a tree, 4 < 5": "a <unk> in a tree 4 < 5",
    "smile :) wink ;-)": "smile :-rrb- wink ;--rrb-",
    "a café, a piñata and crème brûlée": "a café a piñata and crème brûlée",
    "salt &amp; pepper": "salt & pepper",
    "look!a bird,too": "look!a bird too",
}


@pytest.mark.parametrize(("caption", "words"), CASES.items())
def test_words(caption: str, words: str):
    assert tokenize(caption) == words.split()
    assert tokenize(f" {caption}\n") == words.split()


@pytest.mark.parametrize("caption", ["a dog's ball", "Mr. K. isn't here.", "two red/white t-shirts, 1/2 off!!"])
def test_words_are_cut_as_the_caption_was(caption: str):
    words = tokenize(caption)
    assert tokenize(" ".join(words)) == words


def test_no_word_is_empty_or_has_a_space():
    for caption in ("a\u00a0b", "…'\"`", "a--b—c", "\u200b", "'", "´ \u2028 x", "a\0b", "😀 smiles"):
        assert all(word and not any(letter.isspace() for letter in word) for word in tokenize(caption))
