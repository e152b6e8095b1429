"""Where the bytes of files lie that come and go over HTTP, and the answers of batches that run."""
