from environments.shipped.code_debug.env import CodeDebugEnv

__all__ = ["CodeDebugEnv"]
