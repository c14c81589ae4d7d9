"""CIDEr-D, BLEU and ROUGE-L on token ids, compiled and without Java."""
