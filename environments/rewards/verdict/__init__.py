"""Verdicts on programs that an agent wrote, from fresh sandboxes in which nothing can forge one."""
