"""Values of any length in tokens: names, numbers, dates, addresses and random strings.

The structured task draws its values from short lists, and a model that copies only these miscounts others: it writes a
piece of a longer name twice or leaves one out, and everything after it moves. Values here differ in their number of
tokens, in digits, in capitals and in punctuation.

A word belongs to the split of its lower-case form, as in `words.py`. Digits and single letters belong to none.
"""

import random
import string
from collections.abc import Callable

from gesso.eval.structured.words import STRINGS, Make, made_up, word
from gesso.eval.task import split_of

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
HOSTS = ["com", "org", "net", "io", "de", "fr", "co.uk", "dev", "app", "eu"]
LIST_SHARE = 0.4  # share of names from the lists of `words.toml`; the others are composed


def name_part(group: str, split: str, rng: random.Random) -> str:
    """Return a capitalized word: from a list, or of one to six syllables."""
    if rng.random() < LIST_SHARE:
        return word(group, split, rng)
    return long_word(split, rng).capitalize()


def long_word(split: str, rng: random.Random) -> str:
    while True:
        text = "".join(made_up("train", rng) for _ in range(rng.choice((1, 1, 2, 3))))[: rng.randint(3, 16)]
        if split_of(text) == split:
            return text


def person(split: str, rng: random.Random) -> str:
    first, last = name_part("first", split, rng), name_part("last", split, rng)
    forms = ("{f}", "{f} {l}", "{f} {l}", "{f} {i}. {l}", "{f} {l}-{m}", "{l}", "Dr. {l}")
    initial = rng.choice(string.ascii_uppercase)
    return rng.choice(forms).format(f=first, l=last, i=initial, m=name_part("last", split, rng))


def first(split: str, rng: random.Random) -> str:
    return name_part("first", split, rng)


def city(split: str, rng: random.Random) -> str:
    name = name_part("city", split, rng)
    forms = ("{}", "{}", "{}", "{}", "New {}", "{} North", "Port {}", "San {}", "{}-{}")
    return rng.choice(forms).format(name, name_part("city", split, rng))


def company(split: str, rng: random.Random) -> str:
    forms = ("{} Ltd", "{} Works", "{} and Sons", "{}", "{} Inc.", "{} {}", "{} & {}")
    return rng.choice(forms).format(name_part("last", split, rng), name_part("last", split, rng))


def venue(split: str, rng: random.Random) -> str:
    forms = ("{}", "{}", "{}", "Cafe {}", "{} Grill", "Casa {}", "The {}", "{}'s", "{} Bar", "Trattoria {}")
    return rng.choice(forms).format(name_part(rng.choice(("last", "first", "city")), split, rng))


def street(split: str, rng: random.Random) -> str:
    kind = rng.choice(("Street", "Road", "Lane", "Avenue", "Square"))
    return f"{number(rng, 4)} {name_part('last', split, rng)} {kind}"


def email(split: str, rng: random.Random) -> str:
    user = rng.choice(("{a}", "{a}.{b}", "{a}{n}", "{a}_{b}", "{i}.{b}")).format(
        a=name_part("first", split, rng).lower(),
        b=name_part("last", split, rng).lower(),
        n=number(rng, 4),
        i=rng.choice(string.ascii_lowercase),
    )
    return f"{user}@{long_word(split, rng)}.{rng.choice(HOSTS)}"


def url(split: str, rng: random.Random) -> str:
    path = "/".join(long_word(split, rng) for _ in range(rng.randint(0, 2)))
    start = rng.choice(("https://", "https://www.", "http://", "www."))
    return f"{start}{long_word(split, rng)}.{rng.choice(HOSTS)}" + (f"/{path}" if path else "")


def file(split: str, rng: random.Random) -> str:
    ending = rng.choice(("txt", "csv", "png", "pdf", "json", "tar.gz", "py"))
    stem = rng.choice(("{a}", "{a}_{b}", "{a}-{n}", "{a}/{b}", "{a}{n}"))
    return stem.format(a=long_word(split, rng), b=long_word(split, rng), n=number(rng, 4)) + f".{ending}"


def code(split: str, rng: random.Random) -> str:
    """Return a code of up to four groups of random letters, digits or both."""
    alphabet = rng.choice(
        (string.ascii_uppercase, string.digits, string.ascii_uppercase + string.digits, string.hexdigits.lower())
    )
    groups = ("".join(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(rng.choice((1, 2, 2, 3, 4))))
    return rng.choice("-- _/.").strip().join(groups)


def phone(split: str, rng: random.Random) -> str:
    forms = ("###-####", "### ### ####", "+## ### #######", "(###) ###-####", "0## ########", "+# ### ### ####")
    return "".join(rng.choice(string.digits) if sign == "#" else sign for sign in rng.choice(forms))


def zip_code(split: str, rng: random.Random) -> str:
    return "".join(rng.choices(string.digits, k=rng.choice((4, 5, 5, 6))))


def date(split: str, rng: random.Random) -> str:
    year, month, day = rng.randint(1900, 2099), rng.randint(1, 12), rng.randint(1, 28)
    if rng.random() < 0.7:
        return f"{year}-{month:02}-{day:02}"
    name = MONTHS[month - 1]
    return rng.choice((f"{day:02}.{month:02}.{year}", f"{month}/{day}/{year}", f"{name} {day}", f"{day} {name} {year}"))


def time(split: str, rng: random.Random) -> str:
    hour, minute = rng.randint(0, 23), rng.randint(0, 59)
    forms = (f"{hour:02}:{minute:02}", f"{hour:02}:{minute:02}", f"{hour:02}:{minute // 15 * 15:02}")
    twelve = f"{hour % 12 + 1}:{minute:02} {rng.choice(('am', 'pm'))}"
    return rng.choice((*forms, twelve))


def version(split: str, rng: random.Random) -> str:
    return ".".join(number(rng, 3) for _ in range(rng.randint(2, 4)))


def number(rng: random.Random, places: int) -> str:
    """Return a number of one to `places` digits, each count as likely."""
    digits = rng.randint(1, places)
    return str(rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1))


def phrase(split: str, rng: random.Random) -> str:
    """Return a few words, from lists or composed."""
    groups = rng.choices(("adj", "noun", "noun", "food", "verb"), k=rng.randint(1, 4))
    words = [word(group, split, rng) if rng.random() < 0.7 else long_word(split, rng) for group in groups]
    text = " ".join(words)
    return rng.choice((text, text, text.capitalize(), text.title()))


def scrambled(split: str, rng: random.Random) -> str:
    """Return a random string of letters and digits."""
    alphabet = rng.choice((string.ascii_letters + string.digits, string.ascii_lowercase, string.ascii_uppercase))
    while True:
        text = "".join(rng.choices(alphabet, k=rng.randint(2, 12)))
        if split_of(text.lower()) == split:
            return text


# Generators of string values by kind: those of the structured task, most of them with longer values.
LONG_VALUES: dict[str, Make] = {
    **STRINGS,
    "person": person,
    "first": first,
    "city": city,
    "company": company,
    "venue": venue,
    "street": street,
    "email": email,
    "file": file,
    "code": code,
    "phone": phone,
    "zip": zip_code,
    "date": date,
    "time": time,
    "version": version,
}
ANY: tuple[Callable[[str, random.Random], str], ...] = (
    person, person, city, city, company, venue, street, email, url, file, code, code, phone, date, date, time, version,
    phrase, phrase, scrambled,
)  # fmt: skip
