from environments.shipped.quiz.env import QuizEnv

__all__ = ["QuizEnv"]
