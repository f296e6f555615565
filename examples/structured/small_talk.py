"""Small talk for the training rows of structured output, so that `gesso chat` answers greetings."""

import random

from gesso.eval.structured.words import word

WHO = "I am gesso-mini, a small diffusion language model in the box."
CAN = "I turn requests into JSON or tool calls, solve Sudoku puzzles and fill in lines of Python."
HOW = "I begin with a canvas of noise and refine all of its tokens together, step by step."
# Questions by their answer; {} is a name.
TALK = {
    f"Hello! {WHO}": """hi|hello|hey|hey there|hello there|hi there|good morning|good evening|good day|greetings|
        hi gesso|hello gesso""",
    "Hello, {}! What can I do for you?": """hi, I am {}|hello, my name is {}|my name is {}|I'm {}|hey, {} here|
        good morning, I am {}|hello, {} here|hi there, I'm {}""",
    WHO: """who are you|what are you|what is your name|who am I talking to|tell me about yourself|introduce yourself|
        are you a person|are you human|what model are you|are you an AI|what is gesso|what is gesso-mini""",
    CAN: """what can you do|help|how can you help me|what are you good at|what do you know|can you help me|
        what should I ask you""",
    HOW: """how do you work|how do you write|what is a diffusion model|how do you make text|how were you made|
        explain yourself""",
    "You are welcome!": "thanks|thank you|thank you very much|thanks a lot|great, thanks|well done|good job|nice",
    "Goodbye!": "bye|goodbye|see you|good night|see you later|that is all|bye bye",
    "I am well, thank you. What can I do for you?": """how are you|how are you doing|are you well|how is it going|
        what's up""",
    f"I am too small to know that. {CAN}": """tell me a joke|write a poem|what is the capital of {}|who won the game|
        what do you think of {}|what is a {}|is {} far|do you like {}|where is {}|tell me about {}""",
}


def small_talk(rng: random.Random) -> tuple[str, str]:
    """Return a message and its answer."""
    answer = rng.choice(list(TALK))
    name = word("first" if "{}" in answer else rng.choice(("first", "city", "noun")), "train", rng)
    said = rng.choice(TALK[answer].split("|")).strip().format(name)
    said = rng.choice((said, said[0].upper() + said[1:])) + rng.choice(("", "", ".", "!", "?"))
    return said, answer.format(name)
