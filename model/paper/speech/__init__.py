"""Table 3: speech recognition with bidirectional encoders and CTC."""
