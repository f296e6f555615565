"""Questions that measure how gesso-mini answers other topics. They are no training data."""

import re

QUESTIONS = (
    """
Why is the sky blue?|How do birds find their way home?|What makes bread rise?|Why do cats purr?
How does a bicycle stay upright?|What is the tallest mountain?|Who invented the telephone?|Why is the sea salty?
How far away is the moon?|What do bees eat in winter?|Can fish sleep?|Why do leaves change colour in autumn?
What is the speed of light?|How do vaccines work?|Why do we yawn?|What causes thunder?
How old is the universe?|What is photosynthesis?|Who painted the Mona Lisa?|How many bones does a shark have?
What is inflation?|Why did the Roman Empire fall?|How do I boil an egg?|What should I cook tonight?
Recommend a book about the sea.|Tell me a story about a dragon.|Write a haiku about rain.|Sing me a song.
What is the meaning of life?|Do you dream?|Are you happy today?|What is your favourite colour?
Explain gravity to a child.|What is a black hole?|How do magnets work?|Why is ice slippery?
Translate "good morning" to French.|How do you say thank you in Japanese?|What is the plural of octopus?
Is a tomato a fruit?|What is the difference between a crocodile and an alligator?|Why do onions make me cry?
How do I remove a coffee stain?|What is a good name for a dog?|How do I tie a tie?|How long should I sleep?
Is coffee bad for me?|What helps against a headache?|How do I learn to swim?|What is yoga?
Who was the first person in space?|When did the Second World War end?|Where does chocolate come from?
What language do they speak in Brazil?|How many people live in India?|What is the largest desert?
Which river is the longest?|What time is it in Tokyo?|Will it rain tomorrow?|What day is it today?
How do computers work?|What is the internet?|Who owns the moon?|What is a prime number?
What is 17 times 23?|Is zero an even number?|What is the square root of two?|Prove that there are endless primes.
What is democracy?|How does a bill become a law?|Why do we pay taxes?|What is a stock market?
Give me advice about my career.|How do I write a good letter?|How do I make friends?|My boss is unfair.
I feel sad.|I am bored.|I love you.|You are wrong.
Tell me something interesting.|Surprise me.|Continue: once upon a time|Finish this sentence: the early bird
What do you think about art?|Who is your maker?|Which music do you like?|What is jazz?
How is glass made?|How do planes fly?|What is steel made of?|How does a battery work?
Why is the grass green?|Where do butterflies go at night?|How do trees drink water?|Do plants feel pain?
What is a good joke about cheese?|Why did the chicken cross the road?|Knock knock.|What rhymes with orange?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


def plain(text: str) -> str:
    """Return the letters and digits of a text in lower case, with single spaces between words."""
    return " ".join(re.findall(r"\w+", text.lower()))


_HELD_OUT = re.compile(rf"\b({'|'.join(map(plain, QUESTIONS))})\b")


def is_held_out(text: str) -> bool:
    """Return whether a text contains one of the questions, with any punctuation and case."""
    return _HELD_OUT.search(plain(text)) is not None
