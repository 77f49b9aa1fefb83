"""Table 3: speech, features to phonemes by a bidirectional encoder and CTC."""
