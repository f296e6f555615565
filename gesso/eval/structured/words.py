"""Words that fill the requests of the structured task, and values composed of them.

A word belongs to one split by its lower-case form, in every list; words composed of syllables do too. Digits and the
parts that join words into a value (Street, The, .com) belong to no split.
"""

import random
from collections.abc import Callable
from functools import cache

from gesso.eval.task import split_of

WORDS = {
    "first": """
Ada Adam Adele Agnes Aisha Alan Alba Alice Alina Amara Amir Amy Ana Andre Anita Anna Anton Arjun Arlo Asha Astrid Aya
Barbara Basil Beatriz Ben Berta Bianca Bo Boris Bruno Caleb Camila Carla Carlos Carmen Cecilia Celia Chen Chiara Chloe
Clara Colin Cora Dalia Dan Daria David Dennis Diana Diego Dina Dmitri Dora Edgar Edith Elena Eli Elias Elif Elisa Ella
Emeka Emil Emma Enzo Erik Esther Ethan Eva Farah Fatima Felix Fiona Flora Frank Freya Gabriel Gemma George Gerda Gina
Grace Greta Gustav Hana Hannah Hans Harry Hassan Heidi Helen Henry Hiro Hugo Ian Ibrahim Ida Igor Ilse Imani Ines
Ingrid Iris Isaac Isabel Ivan Ivy Jack Jada Jamal James Jana Jasper Javier Jens Joan Joel Jonas Jorge Josef Joy Juan
Jude Julia Jun Kai Karim Karin Kate Keiko Kenji Kira Klaus Kofi Lara Lars Laura Lea Leila Lena Leo Liam Lila Lina
Linus Lola Lucas Lucia Luis Luka Lydia Magda Maja Marco Maria Marta Max Maya Mei Mia Mila Milo Mina Mira Mona Nadia
Naomi Nell Nia Nico Nils Nina Noah Nora Olaf Olga Olivia Omar Oscar Otto Pablo Paula Pedro Petra Pia Priya Rafael Raj
Rana Raul Ravi Rita Robin Rosa Ruben Ruth Sam Sami Sana Sara Selma Simon Sofia Sonia Stefan Sven Tamar Tara Teo Tess
Theo Tim Tina Tomas Uma Ursula Vera Victor Viola Wanda Wei Willa Xenia Yara Yuki Yusuf Zara Zoe""",
    "last": """
Abbott Acosta Adams Ahmed Alvarez Andersen Arnold Bailey Baker Banerjee Barnes Bauer Becker Bell Bennett Berg Bianchi
Bishop Blake Bose Brandt Brooks Brown Burke Byrne Cabrera Carter Castro Chavez Chowdhury Clarke Cohen Cole Conti
Cooper Costa Cox Cruz Dalton Das Davies Delgado Diaz Dixon Dubois Duran Eaton Edwards Ellis Eriksen Evans Farrell
Ferrari Fischer Flores Ford Foster Fox Freeman Fuentes Gallo Garcia Gibson Gomez Gonzalez Graham Grant Greene Gruber
Gupta Haas Hale Hansen Harper Hassan Hayes Hein Hernandez Hill Hoffman Holt Horvath Huang Hughes Hussain Ibarra Iyer
Jackson Jansen Jensen Johnson Jones Kamara Kapoor Kaya Keller Kelly Khan Kim Klein Koch Kovacs Kowalski Kruger Kumar
Lambert Lang Larsen Lee Lehmann Leone Lewis Lim Lind Lopez Lund Maier Malik Marino Marsh Martin Mason Mbeki Medina
Mehta Meyer Miller Mills Molina Moore Morales Moreau Morgan Moretti Morris Murphy Nakamura Navarro Nelson Newman
Nguyen Nielsen Novak Nowak Okafor Olsen Ortega Osei Owens Palmer Park Parker Patel Pena Perez Petrov Phillips Pinto
Popov Porter Powell Price Quinn Ramos Reed Reyes Ricci Rivera Roberts Rojas Romano Rossi Ruiz Russo Ryan Saito Salazar
Santos Sato Schmidt Schulz Shah Sharma Shaw Silva Singh Smith Sokolov Soto Steele Stone Suzuki Svensson Tanaka Taylor
Thomas Torres Tran Turner Vargas Vega Vogel Walker Wallace Walsh Wang Ward Watson Weber Webb Weiss Wells West White
Wilson Wolf Wong Wood Wright Wu Yamada Yang Young Zhang Zimmer""",
    "city": """
Aarhus Accra Adelaide Agadir Algiers Almaty Amman Ankara Antwerp Athens Atlanta Auckland Austin Baku Bali Baltimore
Bangkok Barcelona Basel Bath Beirut Belfast Belgrade Bergen Berlin Bern Bilbao Bogota Bologna Bonn Bordeaux Boston
Bremen Brighton Brisbane Bristol Bruges Brussels Bucharest Budapest Cairo Calgary Canberra Cardiff Casablanca Chennai
Chicago Cologne Copenhagen Cork Cusco Dakar Dallas Damascus Darwin Delhi Denver Detroit Dhaka Doha Dortmund Dresden
Dubai Dublin Durban Edinburgh Essen Florence Frankfurt Galway Geneva Genoa Ghent Glasgow Granada Graz Guadalajara
Halifax Hamburg Hanoi Hanover Havana Helsinki Hobart Houston Hyderabad Istanbul Izmir Jaipur Jakarta Karachi Kathmandu
Kiev Kigali Kingston Kobe Krakow Kyoto Lagos Lahore Leeds Leipzig Lille Lima Lisbon Liverpool Ljubljana London Luanda
Lucerne Lusaka Lyon Madrid Malaga Malmo Manchester Manila Maputo Marseille Medellin Melbourne Memphis Miami Milan
Minsk Mombasa Monaco Montreal Moscow Mumbai Munich Muscat Nagoya Nairobi Nantes Naples Nashville Nice Odessa Oporto
Osaka Oslo Ottawa Oxford Palermo Panama Paris Perth Pisa Porto Prague Quebec Quito Rabat Reykjavik Riga Rio Rome
Rotterdam Salzburg Santiago Sapporo Sarajevo Seattle Seoul Seville Shanghai Singapore Sofia Split Stockholm Stuttgart
Sydney Taipei Tallinn Tampa Tangier Tbilisi Tehran Tirana Tokyo Toledo Toronto Toulouse Trieste Tunis Turin Utrecht
Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington York Zagreb Zurich""",
    "noun": """
anchor apron arrow badge bag balloon banner barrel basket bathtub battery beacon bell belt bench bicycle blanket
blender boat bolt book boot bottle bowl box bracelet branch brick bridge broom brush bucket button cabinet cable
camera candle canoe canvas cap card carpet cart castle ceiling chain chair charger chest clock cloud coat coin collar
comb compass cord couch cradle crane crate crown cup curtain cushion desk diary dish door dragon drawer dress drill
drum engine envelope fan feather fence fiddle filter flag flute forest fork forge fountain frame freezer garage garden
gate gear glass globe glove guitar hammer handle harbor harp hat heater helmet hill hook horn hose island jacket jar
jug kettle key kite knife ladder lake lamp lantern laptop lens lever lighter lock loom magnet mantle map marble mask
mat mattress meadow meter microphone mill mirror monitor moon mountain mouse mug nail napkin needle net notebook ocean
oven paddle paint pan panel pedal pen pencil piano pillow pipe planet plate pocket pole portal printer projector pump
puppet purse puzzle racket radio raft railing ribbon ring river robe robot rocket rope ruler saddle sail scale scarf
school scissors screen shadow shelf shell shield ship shirt shoe shovel shower signal sink skirt slipper soap sofa
speaker spoon spring stair stamp star statue stone stool storm stove straw suitcase summer sweater switch table tablet
teapot telescope tent thimble thread throne ticket tile toaster torch towel tower toy train tray tripod trumpet tube
umbrella valley vase vest violin wagon wall wallet watch wheel whistle window winter wire wrench yacht zipper""",
    "adj": """
amber ancient bitter blue bold brave bright broken bronze brown calm clean clever cold copper cotton crimson curved
dark deep distant dusty early electric empty endless fading famous fancy fast final first folding foreign frozen
gentle giant glass golden grand gray green happy heavy hidden hollow honest hungry iron ivory last late leather light
little lonely long lost loud lucky magic marble metal modern narrow new noisy old orange outer pale paper patient
perfect pink plain plastic polished portable proud purple quick quiet rapid red restless round royal rubber rustic
sacred sharp shiny short silent silk silver simple sleepy slim slow small smart smooth soft solid spare square steel
still striped strong sturdy sunny sweet tall thin tiny velvet violet warm white wide wild wise wooden woolen yellow
young""",
    "food": """
almond apple apricot artichoke asparagus avocado bacon banana barley basil bean beef beet bread broccoli butter
cabbage caramel carrot cashew celery cheese cherry chicken chili chocolate cinnamon coconut coffee corn crab cream
cucumber curry duck egg fennel fig fish flour garlic ginger grape ham hazelnut honey kale lamb leek lemon lentil
lettuce lime lobster mango maple melon milk mint mushroom mustard noodle nutmeg oat olive onion oregano paprika
parsley pasta peach peanut pear pea pecan pepper pineapple pistachio plum pork potato pumpkin quinoa radish raisin
rice rosemary saffron sage salmon salt sesame shrimp spinach squash sugar thyme tofu tomato tuna turkey turnip vanilla
vinegar walnut yogurt zucchini""",
    "verb": """
add archive borrow bring build burn buy call carry check clean close collect copy cut deliver draw drop empty fetch
fill find finish fix fold hang hide inspect label lift load measure mend mount move open order pack paint park pick
plant polish prepare print pull push read remove rent repair replace return scan sell send sew sharpen ship show
sketch sort store sweep test trim turn unpack update wash water weigh wrap""",
}
# Onsets, vowels and ends; - is an empty end. Ends that would spell rude words are left out.
SYLLABLES = (
    "b c ch d f g h j k l m n p qu r s sh t th v w y z br cl dr fl gr pl st tr",
    "a e i o u ai ea ia ie io oo ou",
    "- - - - l m n r nd rk st lt",
)
MADE_UP = 0.3  # share of words composed of syllables, so that a model cannot rely on names it has memorized


@cache
def known(group: str, split: str) -> tuple[str, ...]:
    return tuple(word for word in WORDS[group].split() if split_of(word.lower()) == split)


def made_up(split: str, rng: random.Random) -> str:
    while True:
        count = 1 + (rng.random() < 0.85) + (rng.random() < 0.3)
        word = "".join(rng.choice(part.split()) for _ in range(count) for part in SYLLABLES).replace("-", "")
        if len(word) > 2 and split_of(word) == split:
            return word


def word(group: str, split: str, rng: random.Random) -> str:
    if rng.random() >= MADE_UP:
        return rng.choice(known(group, split))
    made = made_up(split, rng)
    return made.capitalize() if group in ("first", "last", "city") else made


Make = Callable[[str, random.Random], str]


def _title(split: str, rng: random.Random) -> str:
    adj, noun, city = (word(group, split, rng) for group in ("adj", "noun", "city"))
    forms = (f"The {adj} {noun}", f"{adj} {noun}", f"{noun} of {city}", f"A {noun} in {city}", f"The {noun}")
    return " ".join(part if part in ("of", "in") else part.capitalize() for part in rng.choice(forms).split())


def _file(split: str, rng: random.Random) -> str:
    noun, adj, ending = word("noun", split, rng), word("adj", split, rng), rng.choice(("txt", "csv", "png", "pdf"))
    return rng.choice((f"{noun}.{ending}", f"{adj}_{noun}.{ending}", f"{noun}/{adj}.{ending}", f"{noun}{{}}.{ending}")
                      ).format(rng.randint(1, 99))  # fmt: skip


def _email(split: str, rng: random.Random) -> str:
    user, host = word("first", split, rng).lower(), word("last", split, rng).lower()
    return rng.choice((f"{user}@{host}.com", f"{user}{rng.randint(1, 99)}@{host}.org"))


def _person(split: str, rng: random.Random) -> str:
    first, last = word("first", split, rng), word("last", split, rng)
    return first if rng.random() < 0.15 else f"{first} {last}"


def _code(split: str, rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=2))
    return f"{letters}-{rng.randint(10, 9999)}"


def _dish(split: str, rng: random.Random) -> str:
    form = rng.choice(("{} soup", "{} pie", "{} salad", "{} and {} stew", "{} with {}", "baked {}", "{} cake"))
    return form.format(word("food", split, rng), word("food", split, rng))


# Generators of string values, by kind.
STRINGS: dict[str, Make] = {
    "person": _person,
    "first": lambda split, rng: word("first", split, rng),
    "city": lambda split, rng: word("city", split, rng),
    "company": lambda split, rng: rng.choice(("{} Ltd", "{} Works", "{} and Sons")).format(word("last", split, rng)),
    "venue": lambda split, rng: rng.choice(("Cafe {}", "{} Grill", "Casa {}", "The {}")).format(
        word("last", split, rng)
    ),
    "street": lambda split, rng: (
        f"{rng.randint(1, 199)} {word('last', split, rng)} " + rng.choice(("Street", "Road", "Lane", "Avenue"))
    ),
    "email": _email,
    "title": _title,
    "thing": lambda split, rng: f"{word('adj', split, rng)} {word('noun', split, rng)}",
    "noun": lambda split, rng: word("noun", split, rng),
    "food": lambda split, rng: word("food", split, rng),
    "dish": _dish,
    "chore": lambda split, rng: f"{word('verb', split, rng)} the {word('noun', split, rng)}",
    "fault": lambda split, rng: (
        f"{word('noun', split, rng)} "
        + rng.choice(("does not open", "is too slow", "shows nothing", "crashes", "is missing"))
    ),
    "option": lambda split, rng: f"{word('noun', split, rng)}_{rng.choice(('size', 'limit', 'mode', 'rate'))}",
    "file": _file,
    "code": _code,
    "phone": lambda split, rng: f"{rng.randint(200, 999)}-{rng.randint(0, 9999):04}",
    "zip": lambda split, rng: f"{rng.randint(10000, 99999)}",
    "date": lambda split, rng: f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    "time": lambda split, rng: f"{rng.randint(0, 23):02}:{rng.choice(range(0, 60, 5)):02}",
    "version": lambda split, rng: f"{rng.randint(0, 9)}.{rng.randint(0, 19)}.{rng.randint(0, 9)}",
}
