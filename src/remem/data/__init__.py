"""What a stream is: padded batches, stable random numbers, codecs, and the datasets."""
