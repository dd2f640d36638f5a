"""The conformance checks of a sandbox, one file per topic; `tools.sandbox.check` runs them."""
