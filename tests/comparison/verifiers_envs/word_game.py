"""A Wordle-like game: the environment plays the user."""

import verifiers.v1 as vf
from common import GUESSES, WORD_RULES, WORDS, is_guess, marks

__all__ = ["WordGame", "WordTaskset"]


class Data(vf.TaskData):
    answer: str


class WordTask(vf.Task[Data]):
    pass


class WordGameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class WordGame(vf.Env[WordGameConfig]):
    async def run(self, task, agents):
        best, solved = 0, False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for guesses_left in reversed(range(GUESSES)):
                if segment.terminated:
                    break
                guess = segment.last_reply.strip().lower()
                solved = guess == task.data.answer
                shown = marks(guess, task.data.answer) if is_guess(guess) else "no word of five letters"
                if is_guess(guess):
                    best = max(best, shown.count("g"))
                if solved or not guesses_left:
                    break
                segment = await interaction.turn(shown)
        interaction.trace.record_reward("letters", best, 0.1)
        interaction.trace.record_reward("solved", float(solved))


class WordTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        prompt = "Make your first guess; answer with the word alone."
        for word in WORDS:
            data = Data(id=word, prompt=prompt, system_prompt=WORD_RULES, answer=word)
            yield WordTask(data, self.config.task)
