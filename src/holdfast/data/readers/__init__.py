"""One file per reader of data. Each declares with ``@reader`` what it reads; nothing else knows its name."""
