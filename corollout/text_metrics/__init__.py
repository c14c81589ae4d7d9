"""CIDEr-D, BLEU and ROUGE-L on token ids, compiled and without Java."""

from corollout.text_metrics.bleu import Bleu
from corollout.text_metrics.cider import Cider
from corollout.text_metrics.ngrams import Tokens
from corollout.text_metrics.references import DocumentFrequencies, References
from corollout.text_metrics.rouge import RougeL

__all__ = ["Bleu", "Cider", "DocumentFrequencies", "References", "RougeL", "Tokens"]
