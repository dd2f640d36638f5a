"""The viewer of records: a page in one file or from a server on loopback, and text for a terminal."""
