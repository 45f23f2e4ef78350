"""A sampling stage as a user would write it: requests with seed 77 say only one word."""

from octavo.sampling.stage import Column, Place

WORD = 300


class OneWord:
    """Its bias is as wide as the vocabulary, so a row that wants it takes a slot."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
        self.columns = (Column("one_word", (vocab_size,), place=Place.SLOT),)

    def wants(self, params):
        return params.seed == 77

    def fill(self, admission):
        bias = [-1e9] * self.vocab_size
        bias[WORD] = 0.0
        return {"one_word": bias}

    def apply(self, logits, view):
        return logits + view.pool("one_word")

    def update(self, view, tokens):
        pass
