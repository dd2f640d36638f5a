"""The part that runs inside a sandbox: standard library only, few imports, because each session pays for them."""
