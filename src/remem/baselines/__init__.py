"""The methods the paper compares with, one file each: memories, and models that read the whole stream."""
