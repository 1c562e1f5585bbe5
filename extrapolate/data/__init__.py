"""Documents of token ids from text that is really there."""

from extrapolate.data.documents import Document, Source, encode, load_documents, tokenizer_fingerprint
from extrapolate.data.sources import HuggingFace, Local, Sotu

__all__ = ["Document", "HuggingFace", "Local", "Sotu", "Source", "encode", "load_documents", "tokenizer_fingerprint"]
