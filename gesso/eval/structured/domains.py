"""Topics of the structured task: their fields, the names of these in a schema, and their wordings.

Wordings are written `train | train // validation // test`, so that splits do not share wordings. Held-out wordings are
new sentences of known words, because the meaning of a request must be clear from its text.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gesso.eval.task import SPLITS

Wordings = dict[str, tuple[str, ...]]  # by split


@dataclass(frozen=True, eq=False)
class Field:
    keys: tuple[str, ...]  # synonyms; a schema uses one of them
    kind: str  # of value: a key of words.STRINGS, or `int 1 9`, `num 1 9`, `list KIND`, `enum a b c`, `bool`
    says: Wordings  # {} is the value; a bool has `when true ~ when false`


@dataclass(frozen=True, eq=False)
class Domain:
    name: str
    tools: tuple[str, ...]
    asks: Wordings  # the requested action: a verb and its object
    fields: tuple[Field, ...]
    nest: tuple[str, ...] = ()  # names of an object that may contain some of the fields
    nested: tuple[str, ...] = ()  # those fields, by their first key


def wordings(text: str) -> Wordings:
    parts = [tuple(one.strip() for one in part.split("|")) for part in text.split("//")]
    return dict(zip(SPLITS, parts, strict=True))


def _domain(name: str, tools: str, asks: str, fields: Iterable[tuple[str, str, str]], nest: str = "") -> Domain:
    made = tuple(Field(tuple(keys.split()), kind, wordings(says)) for keys, kind, says in fields)
    names, _, nested = nest.partition(":")
    return Domain(name, tuple(tools.split()), wordings(asks), made, tuple(names.split()), tuple(nested.split()))


# Wordings for any field, by one of its names. A bool has its own.
FRAMES = wordings(
    "{key} {value} | {key}: {value} | with {key} {value} | the {key} is {value} | {key} = {value} | {value} as the"
    " {key}"
    " | {key} set to {value} | {value} for the {key} | {key} should be {value} | its {key} is {value}"
    " // let the {key} be {value} | having {key} {value} // the {key} should be {value} | use {value} as the {key}"
    " | a {key} of {value}"
)
SWITCHES = wordings(
    "{key}: yes ~ {key}: no | {key} is true ~ {key} is false | {key} on ~ {key} off | set {key} to true ~ set {key} to"
    " false | with {key} yes ~ with {key} no // {key} = true ~ {key} = false // {key} set to yes ~ {key} set to no"
)
WRAPPERS = wordings(
    "{} | please {} | can you {} | I want to {} | I need you to {} | hi, {} | I'd like to {} | {} for me | now {}"
    " // would you {} | hello, please {} // could you please {} | I would like you to {} | hey, I need to {}"
)

DOMAINS = (
    _domain("contact", "save_contact add_contact create_contact",
        "save a contact | add a contact | create a new contact | store this contact | put a person in my contacts"
        " // save a new contact | add this person // create a contact | store a person in my contacts", (
        ("name full_name contact_name", "person", "named {} | called {} | for {} | by the name of {} | whose name is {}"
         " // who is named {} // with the name of {}"),
        ("phone phone_number tel", "phone", "phone number {} | reachable at {} | with number {} | call {} | tel. {}"
         " // whose phone is {} // reachable by phone at {}"),
        ("email mail email_address", "email", "with email {} | mail to {} | email address {} | write to {}"
         " // whose email is {} // reachable by mail at {}"),
        ("city town home_city", "city", "from {} | living in {} | who lives in {} | based in {} // at home in {}"
         " // whose home is in {}"),
        ("company employer firm", "company", "working for {} | who works at {} | of the company {} | employed by {}"
         " // with a job at {} // working at the firm {}"),
        ("favorite is_favorite starred", "bool", "mark as favorite ~ not a favorite | a favorite ~ do not mark as"
         " favorite | star it ~ without a star // it is a favorite ~ it is no favorite // make it a favorite ~ not"
         " marked as favorite"),
    )),
    _domain("event", "create_event add_event schedule_event",
        "schedule an event | add an event to my calendar | plan a meeting | create a calendar event | set up a meeting"
        " // put an event in my calendar // schedule a meeting | plan an event", (
        ("title event_name subject", "title", "called {} | named {} | titled {} | about {} // that is called {}"
         " // with the name {}"),
        ("date day event_date", "date", "on {} | for {} | on the day {} | dated {} // for the date {} // on the date"
         " {}"),
        ("time start start_time", "time", "at {} | starting at {} | from {} | to start at {} // that starts at {}"
         " // with a start at {}"),
        ("location place city", "city", "in {} | held in {} | located in {} | to be held in {} // taking place in {}"
         " // that is held in {}"),
        ("minutes duration length_minutes", "int 10 240", "for {} minutes | lasting {} minutes | {} minutes long"
         " | of {} minutes // that lasts {} minutes // with a length of {} minutes"),
        ("guests attendees people", "list first", "with {} | together with {} | inviting {} | invite {} // with"
         " guests {}"
         " // inviting the people {}"),
    )),
    _domain("order", "place_order create_order order_product",
        "order something | place an order | buy something | make a purchase | create an order"
        " // place a new order // make an order | buy something new", (
        ("product item article", "thing", "for the {} | the item being {} | namely the {} | I mean the {} | a {}"
         " // this time the {} // the product being the {}"),
        ("quantity qty count", "int 1 99", "{} pieces | {} of them | {} units | make it {} pieces // {} pieces of it"
         " // {} units of it"),
        ("price unit_price cost", "num 1 300", "at {} euros | for {} euros each | costing {} euros | priced at {}"
         " // at a price of {} euros // that costs {} euros"),
        ("color colour", "enum red blue green black white yellow", "in {} | colored {} | of {} color | the {} one"
         " // in the color {} // the one in {}"),
        ("customer buyer client", "person", "for customer {} | on behalf of {} | bought by {} | ordered by {}"
         " // the buyer being {} // on behalf of the customer {}"),
        ("express fast_delivery rush", "bool", "with express delivery ~ without express delivery | sent express ~ not"
         " sent"
         " express | in a rush ~ no rush // by express ~ not by express // deliver it express ~ no express delivery"),
    )),
    _domain("weather", "get_weather weather_forecast check_weather",
        "check the weather | get the forecast | show me the weather | look up the weather | tell me the forecast"
        " // get the weather | look up the forecast // show me the forecast | tell me the weather", (
        ("city location place", "city", "in {} | for {} | at {} | around {} // in the place {} // for the place {}"),
        ("date day", "date", "on {} | for the day {} | of {} | dated {} // the day being {} // on the date {}"),
        ("unit units temperature_unit", "enum celsius fahrenheit kelvin", "in {} | using {} | with {} degrees | as {}"
         " // in degrees {} // given in {}"),
        ("days num_days horizon", "int 1 14", "for {} days | over {} days | the next {} days | {} days ahead"
         " // for the next {} days // over the next {} days"),
        ("hourly by_hour", "bool", "hour by hour ~ not hour by hour | hourly ~ not hourly | with every hour ~ without"
         " the hours // for every hour ~ not for every hour // by the hour ~ not by the hour"),
    )),
    _domain("flight", "book_flight find_flight reserve_flight",
        "book a flight | find a flight | reserve a flight | get me a flight | buy a plane ticket"
        " // book a plane ticket // find a plane ticket | get a flight", (
        ("origin from_city departure", "city", "from {} | leaving from {} | departing from {} | starting in {}"
         " // that leaves from {} // with departure from {}"),
        ("destination to_city arrival", "city", "to {} | going to {} | flying to {} | arriving in {} | bound for {}"
         " // that goes to {} // with arrival in {}"),
        ("date travel_date day", "date", "on {} | for {} | traveling on {} | dated {} // the day being {} // on the"
         " date {}"),
        ("passengers travelers seats", "int 1 9", "for {} passengers | {} seats | with {} travelers | for {} people"
         " // {} passengers in all // seats for {} travelers"),
        ("cabin class travel_class", "enum economy business first premium", "in {} class | flying {} | {} cabin"
         " | in the {} cabin // traveling in {} class // with seats in {}"),
        ("direct nonstop", "bool", "direct ~ not direct | nonstop ~ with stops | without stops ~ stops are fine"
         " // a direct one ~ not a direct one // it must be direct ~ it need not be direct"),
    )),
    _domain("bug", "report_bug file_bug create_issue",
        "report a bug | file a bug | open an issue | create a bug report | log a bug"
        " // file a bug report // open a bug report | log an issue", (
        ("summary title problem", "fault", "saying the {} | the problem: the {} | because the {} | that the {}"
         " // as the {} // the problem is that the {}"),
        ("component module part", "noun", "in the {} module | in component {} | about the {} part | affecting the {}"
         " // in the {} part // about the component {}"),
        ("severity priority level", "enum low medium high critical", "with {} severity | of {} priority | rated {}"
         " | it is {} // at {} priority // with a severity of {}"),
        ("version app_version release", "version", "in version {} | since {} | seen in release {} | running {}"
         " // seen in version {} // since the release {}"),
        ("reproducible can_reproduce", "bool", "it can be reproduced ~ it cannot be reproduced | reproducible ~ not"
         " reproducible | happens always ~ does not happen always // I can reproduce it ~ I cannot reproduce it"
         " // it is reproducible ~ it is not reproducible"),
        ("reporter finder user", "person", "reported by {} | seen by {} | found by {} | from user {}"
         " // the reporter being {} // from the reporter {}"),
    )),
    _domain("recipe", "save_recipe add_recipe new_recipe",
        "save a recipe | add a recipe | write down a recipe | keep this recipe | store a recipe"
        " // write down this recipe // keep a recipe | add this recipe", (
        ("dish name recipe_name", "dish", "for {} | named {} | called {} | of {} // the dish being {} // for a dish"
         " of {}"),
        ("servings serves portions", "int 1 12", "for {} people | serving {} | makes {} portions | {} servings"
         " // enough for {} people // that serves {}"),
        ("minutes cooking_time time_needed", "int 5 180", "in {} minutes | taking {} minutes | ready in {} minutes"
         " | cooked for {} minutes // that takes {} minutes // with {} minutes of cooking"),
        ("ingredients needs food", "list food", "made with {} | with {} | containing {} | it needs {}"
         " // with ingredients {} // made from {}"),
        ("vegan is_vegan plant_based", "bool", "vegan ~ not vegan | it is vegan ~ it is not vegan | plant based ~ not"
         " plant based // a vegan one ~ not a vegan one // fully vegan ~ never vegan"),
    )),
    _domain("book", "add_book catalog_book save_book",
        "add a book | catalog a book | put a book on my list | save this book | record a book"
        " // add a book to my list // put this book on my list | save a book", (
        ("title book_title name", "title", "titled {} | called {} | named {} | with the title {} // that is called {}"
         " // by the title of {}"),
        ("author writer novelist", "person", "by {} | written by {} | from author {} | of the writer {}"
         " // that {} has written // from the writer {}"),
        ("year published publication_year", "int 1800 2030", "from {} | published in {} | of the year {} | out in {}"
         " // from the year {} // that was published in {}"),
        ("pages page_count length", "int 40 900", "{} pages | with {} pages | {} pages long | of {} pages"
         " // that has {} pages // with a length of {} pages"),
        ("genre category kind", "enum fiction history science poetry travel crime", "a {} book | genre {} | filed under"
         " {} | about {} // of the {} kind // in the {} category"),
        ("read is_read finished", "bool", "I have read it ~ I have not read it | already read ~ not read yet | finished"
         " ~ not finished // I finished it ~ I have not finished it // it is read ~ it is not read"),
    )),
    _domain("song", "play_song add_song queue_song",
        "play a song | add a song to the playlist | queue a song | put on a song | start a track"
        " // play a track // queue a track | add a song", (
        ("title song track", "title", "called {} | titled {} | the one named {} | with the title {}"
         " // that is titled {} // by the title of {}"),
        ("artist singer performer", "person", "by {} | sung by {} | from artist {} | performed by {}"
         " // that {} sings // with the singer {}"),
        ("volume loudness", "int 1 100", "at volume {} | volume {} | at {} percent volume | as loud as {}"
         " // with the volume at {} // at a volume of {}"),
        ("year released release_year", "int 1950 2030", "from {} | released in {} | of the year {} | out in {}"
         " // from the year {} // that was released in {}"),
        ("genre style", "enum rock jazz pop folk blues soul", "some {} | genre {} | in {} style | a {} song"
         " // in the {} genre // of {} style"),
        ("repeat loop", "bool", "on repeat ~ not on repeat | repeat it ~ do not repeat it | in a loop ~ no loop"
         " // with repeat ~ without repeat // keep it on repeat ~ never repeat it"),
    )),
    _domain("sensor", "log_reading record_reading store_reading",
        "log a reading | record a sensor reading | store a measurement | save a reading | note this measurement"
        " // log a sensor reading | note a reading // store a reading | record a measurement", (
        ("sensor sensor_id device", "code", "from sensor {} | of device {} | sent by {} | sensor {}"
         " // sent by sensor {} // coming from device {}"),
        ("temperature temp degrees", "num -20 40", "at {} degrees | {} degrees | temperature {} | it is {} degrees"
         " // at just {} degrees // at a temperature of {}"),
        ("humidity moisture", "int 5 99", "{} percent humidity | humidity {} percent | at {} percent moisture"
         " | humidity at {} // with {} percent humidity // at a humidity of {} percent"),
        ("site place location", "city", "in {} | placed in {} | located in {} | at {} // located at {} // at the site"
         " {}"),
        ("time reading_time timestamp", "time", "taken at {} | measured at {} | at time {} | read at {}"
         " // that was measured at {} // taken at the time {}"),
        ("alarm alert", "bool", "raise the alarm ~ no alarm | with alarm ~ without alarm | alarm needed ~ alarm not"
         " needed"
         " // with an alarm ~ without an alarm // an alarm is needed ~ an alarm is not needed"),
    )),
    _domain("reminder", "set_reminder add_reminder create_reminder",
        "set a reminder | add a reminder | make me a reminder | create a reminder | remind me"
        " // set me a reminder // make a reminder | add a new reminder", (
        ("task text todo", "chore", "to {} | that I must {} | so that I {} | saying {} // so that I must {}"
         " // saying that I must {}"),
        ("date day due", "date", "on {} | for {} | due {} | by {} // the day being {} // due on {}"),
        ("time clock_time hour", "time", "at {} | at the hour {} | around {} | ringing at {} // at the time {} //"
         " that rings at {}"),
        ("priority importance", "enum low normal high top", "with {} priority | priority {} | it has {} importance"
         " | of {} importance // at {} priority // with {} importance"),
        ("urgent is_urgent", "bool", "urgent ~ not urgent | this is urgent ~ this is not urgent | it is urgent ~ it"
         " is not"
         " urgent // very urgent ~ not so urgent // marked urgent ~ not marked urgent"),
        ("person recipient assignee", "first", "for {} | telling {} | meant for {} | it concerns {} // that concerns {}"
         " // it is meant for {}"),
    )),
    _domain("shipment", "ship_parcel send_parcel create_shipment",
        "ship a parcel | send a parcel | create a shipment | post a package | send a package"
        " // ship a package // post a parcel | create a new shipment", (
        ("recipient receiver addressee", "person", "to {} | for {} | addressed to {} | the receiver is {}"
         " // the receiver being {} // that is addressed to {}"),
        ("street street_address line1", "street", "at {} | living at {} | street {} | to the door at {}"
         " // who lives at {} // at the street {}"),
        ("city town", "city", "in {} | in the city of {} | to {} city | town {} // in the town of {} // to the city"
         " of {}"),
        ("zip postal_code zip_code", "zip", "zip {} | postal code {} | with zip code {} | code {}"
         " // the zip code is {} // under postal code {}"),
        ("weight weight_kg kilos", "num 1 40", "weighing {} kilos | of {} kg | {} kilos heavy | weight {} kg"
         " // with {} kilos of weight // that weighs {} kg"),
        ("insured insurance", "bool", "insured ~ not insured | with insurance ~ without insurance | insure it ~ do not"
         " insure it // it is insured ~ it is not insured // I want insurance ~ I want no insurance"),
    ), nest="address destination deliver_to:street city zip"),
    _domain("reservation", "book_table reserve_table make_reservation",
        "book a table | reserve a table | get me a table | make a reservation | make a dinner reservation"
        " // reserve a dinner table | get a table // book a dinner table | make a table reservation", (
        ("restaurant venue place", "venue", "at {} | in the restaurant {} | eating at {} | at the place {}"
         " // for dinner at {} // at the restaurant {}"),
        ("guests party_size people", "int 1 20", "for {} people | for {} | party of {} | {} guests | we are {}"
         " // we are {} people // for a party of {}"),
        ("date day", "date", "on {} | for {} | on the day {} | dated {} // the day being {} // on the date {}"),
        ("time hour", "time", "at {} | from {} | around {} | eating at {} // at the time {} // from the hour {}"),
        ("outdoor outside terrace", "bool", "outside ~ not outside | on the terrace ~ not on the terrace | outdoor"
         " seats ~"
         " no outdoor seats // with outdoor seats ~ without outdoor seats // we sit outside ~ we do not sit outside"),
        ("name guest_name booking_name", "person", "under the name {} | for {} | in the name of {} | booked by {}"
         " // the name is {} // with the name of {}"),
    )),
    _domain("transfer", "transfer_money send_money make_payment",
        "transfer money | send money | make a payment | pay someone | make a bank transfer"
        " // send a payment // make a money transfer | send a bank transfer", (
        ("amount sum value", "num 1 900", "of {} | amounting to {} | in the sum of {} | {} in all | exactly {}"
         " // with an amount of {} // to the sum of {}"),
        ("currency money_unit", "enum EUR USD GBP JPY CHF SEK", "in {} | paid in {} | currency {} | as {}"
         " // in the currency {} // to be paid in {}"),
        ("recipient payee receiver", "person", "to {} | for {} | going to {} | the payee is {} // that goes to {}"
         " // with {} as payee"),
        ("account account_number iban", "code", "account {} | to account {} | into account {} | account number {}"
         " // on the account {} // with account number {}"),
        ("note reference purpose", "thing", "for the {} | with note {} | noting {} | because of the {}"
         " // with the note {} // the purpose is the {}"),
        ("instant immediate", "bool", "instantly ~ not instantly | at once ~ not at once | immediate ~ not immediate"
         " // make it instant ~ it need not be instant // it must be immediate ~ it is not immediate"),
    ), nest="to target beneficiary:recipient account"),
    _domain("review", "rate_movie add_review review_movie",
        "rate a movie | add a review | review a film | write a movie review | rate a film"
        " // review a movie | write a review // rate this film | add a film review", (
        ("movie film movie_title", "title", "called {} | for {} | the film {} | about the movie {} // about the film {}"
         " // that is the movie {}"),
        ("stars rating score", "int 1 10", "{} stars | with {} stars | {} out of 10 | a score of {} // giving {} stars"
         " // with a score of {}"),
        ("reviewer critic author", "person", "by {} | written by {} | from reviewer {} | reviewed by {}"
         " // from the critic {} // with {} as reviewer"),
        ("watched watch_date date", "date", "seen on {} | watched on {} | on {} | dated {} // that I watched on {}"
         " // that I have seen on {}"),
        ("recommend would_recommend", "bool", "I recommend it ~ I do not recommend it | recommended ~ not recommended"
         " | worth seeing ~ not worth seeing // I would recommend it ~ I would not recommend it // it is recommended"
         " ~ it is not recommended"),
    )),
    _domain("setting", "change_setting set_option update_config",
        "change a setting | set an option | update the config | adjust a setting | configure something"
        " // update a setting // change an option | adjust the config", (
        ("option setting name", "option", "called {} | named {} | the one called {} | namely {} // that is called {}"
         " // with the name of {}"),
        ("value new_value amount", "int 0 999", "to {} | to the value {} | make it {} | it becomes {}"
         " // to the new value {} // with a value of {}"),
        ("scope level reach", "enum user system project session", "for the {} | at {} level | on the {} scope"
         " | in the {} scope // at the level of the {} // on the level {}"),
        ("file config_file path", "file", "in {} | in the file {} | written to {} | stored in {} // in the config"
         " file {}"
         " // stored in the file {}"),
        ("enabled active", "bool", "enable it ~ disable it | switched on ~ switched off | turn it on ~ turn it off"
         " // it is enabled ~ it is disabled // keep it switched on ~ keep it switched off"),
    )),
    _domain("file", "file_operation manage_file handle_file",
        "do a file operation | handle a file | do something with a file | work on a file | manage a file"
        " // do something to a file // handle this file | manage this file", (
        ("action operation command", "enum copy move rename link backup", "{} it | I want a {} | do a {} | the action"
         " is {}"
         " // just {} it // what I want is a {}"),
        ("source from_path input", "file", "from {} | the source {} | taking {} | starting with {} // from the file {}"
         " // with source {}"),
        ("target to_path output", "file", "to {} | into {} | the target {} | ending at {} // into the file {}"
         " // with target {}"),
        ("overwrite replace", "bool", "overwrite if needed ~ do not overwrite | replacing what is there ~ without"
         " replacing"
         " anything | overwriting ~ not overwriting // you may overwrite it ~ you may not overwrite it // and overwrite"
         " anything ~ and never overwrite"),
        ("retries attempts tries", "int 0 9", "with {} retries | {} attempts | trying {} times | up to {} tries"
         " // with {} attempts // up to {} retries"),
    ), nest="paths files:source target"),
    _domain("light", "set_light control_lamp change_light",
        "set the light | change the lamp | control the light | adjust the lamp | switch the lights"
        " // change the light // adjust the light | control the lamp", (
        ("room room_name area", "enum kitchen bedroom hall bathroom office garage", "in the {} | of the {} | for the {}"
         " | {} lights // that is in the {} // inside the {}"),
        ("brightness level percent", "int 1 100", "at {} percent | to {} percent | brightness {} | as bright as {}"
         " // with {} percent brightness // at a brightness of {}"),
        ("color shade", "enum red warm cold blue white amber", "in {} | make it {} | {} light | colored {}"
         " // in {} color // in the shade {}"),
        ("power switched_on lit", "bool", "turn it on ~ turn it off | switched on ~ switched off | on please ~ off"
         " please"
         " // it should be on ~ it should be off // switch it on ~ switch it off"),
        ("delay seconds wait", "int 1 600", "after {} seconds | in {} seconds | waiting {} seconds | delay of {}"
         " seconds"
         " // with {} seconds of delay // after a delay of {} seconds"),
        ("lamp light_name device", "noun", "the {} lamp | lamp {} | the one called {} | named {} // the lamp called {}"
         " // the lamp named {}"),
    )),
    _domain("profile", "update_profile edit_profile save_user",
        "update a profile | edit a user | save a user | change a profile | register a person"
        " // edit a profile // save a profile | update a user", (
        ("name full_name user_name", "person", "named {} | of {} | called {} | for {} // who is called {}"
         " // with the name of {}"),
        ("age years", "int 16 95", "aged {} | {} years old | of age {} | who is {} // who is {} years old // of {}"
         " years"),
        ("city town home", "city", "from {} | living in {} | in {} | who lives in {} // whose home is {}"
         " // with a home in {}"),
        ("email mail", "email", "with email {} | mail {} | reachable at {} | write to {} // with the email address {}"
         " // reachable by mail at {}"),
        ("skills tags interests", "list noun", "tagged {} | interested in {} | with tags {} | who likes {}"
         " // with interests {} // with the tags {}"),
        ("member is_member subscribed", "bool", "a member ~ not a member | subscribed ~ not subscribed | with"
         " membership ~"
         " without membership // is a member ~ is no member // who is a member ~ who is not a member"),
    ), nest="contact details info:city email"),
)  # fmt: skip

# Records of any kind, whose attributes are distinguished by their names only.
THINGS = ("entry record item object row form card asset sheet note", "save log store create add")
ATTRIBUTES = {
    "int 0 999": "size width height depth count rank level index total limit port slots floor row column points",
    "num 1 99": "weight ratio speed score length voltage margin rate load angle",
    "noun": "label tag topic group category shape material symbol brand",
    "city": "region place home base site market",
    "first": "owner manager editor contact tester driver",
    "code": "serial batch ticket reference model slot_id",
    "bool": "active visible locked public archived verified",
}
