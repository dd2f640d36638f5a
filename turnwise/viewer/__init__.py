"""Looking at a record: values for a page and for a terminal, the page itself, and a server on loopback."""
