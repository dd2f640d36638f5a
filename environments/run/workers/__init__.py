"""Workers: further processes of this machine or of a Ray cluster that roll out groups."""
