"""Seeded text of real words, so that synthetic prompts tokenise as prose does."""

from __future__ import annotations

import random

_TEXT = """
about above across after again air all along also always animal answer any apple around ask autumn away back bank
basket beach because become before begin behind believe below beside better between bird boat book both bottle bread
bridge bright bring brother build busy butter buy call camera carry castle catch cause chair change children choose
circle city clean clear climb clock close cloud coast cold collect colour come common copper corner cotton could count
country course cover cross crowd dark daughter decide deep desk different dinner direction distance doctor door down
dream drink drive during early earth east easy edge eight empty engine enough enter evening every example explain eye
face fact fall family farm fast father field figure find finger finish fire fish floor flower follow food forest forget
form forward friend front fruit full garden gather gentle give glass gold good grass great green ground group grow
guess hair half hand happen happy harbour hard head hear heart heavy help here high hill history hold home hope horse
hour house hundred hunt idea important inside iron island join journey jump keep kind king kitchen know lake lamp land
language large laugh lead leaf learn leave left letter level library light like line listen little live long look lose
love machine make many map market matter meadow mean measure meet middle might mile milk minute money month moon more
morning mother mountain mouth move music name narrow near need never new next night noise north notice number ocean
often old once open orange order other outside over page paint pair paper park part pass pattern pay people perhaps
picture piece place plain plan plant play please point possible pound power press problem produce promise pull push
quarter question quick quiet quite rain reach read ready reason record red remember repeat rest result return rich ride
right ring rise river road rock roll roof room root round rule run sail salt same sand save say school sea season seat
second see seed seem sell send sentence serve set seven several shape share sharp sheep ship shop short should shoulder
show side silver similar simple since sing sister sit size skin sleep slow small smile snow soft soil soldier some song
soon sound south space speak special spell spend spring square stand star start station stay steel step still stone
stop store storm story straight strange stream street strong student study such sudden sugar summer sun supply sure
surface swim table tail take talk tall teach tell temple ten thick thin thing think thousand thread through throw ticket
time together tomorrow tool top touch toward tower town track trade train travel tree true turn under until use valley
village visit voice wait walk wall warm wash watch water wave weather week weight west wheel where while white whole
wide wild wind window winter wire wish wood word work world write yard year yellow young
"""
_WORDS = _TEXT.split()


class Prose:
    """Draws words and sentences; the same seed gives the same text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=count))

    def name(self) -> str:
        return self.random.choice(_WORDS).capitalize()

    def text(self, num_words: int) -> str:
        """Sentences of 6 to 14 words, `num_words` in all."""
        sentences = []
        while num_words > 0:
            length = min(num_words, self.random.randint(6, 14))
            sentences.append(self.words(length).capitalize() + ".")
            num_words -= length
        return " ".join(sentences)
