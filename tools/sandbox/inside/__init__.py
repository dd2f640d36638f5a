"""The part that runs inside a sandbox: standard library only, and few imports: each session pays for them."""
