"""The server: a kept model over HTTP, with one page for people."""
