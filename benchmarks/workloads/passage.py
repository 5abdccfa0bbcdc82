"""A fixed text for measuring perplexity: written for this purpose, in the public domain."""

PASSAGE = """\
The weir above the mill had been leaking since the spring floods, and by the end of summer nobody could remember what
the pool had looked like when it was full. Boys walked across the gravel where they had once learned to swim. The
miller, whose name was Anselm Roke, said that it would be mended when the price of oak came down, and the price of oak
went up. He was not a lazy man, but he had reached the age at which a repair put off for a season seems like a kindness
done to oneself.

His daughter Ines kept the accounts. She had a ledger for flour, a ledger for rye, and a third, bound in green cloth,
in which she wrote down everything that did not belong in the other two: the date on which the swallows left, the
height of the water at the second stone, the number of carts that had come from the far side of the hill. She had begun
it when she was eleven years old. It had no purpose that she could have explained, and she had never missed a day.

It was the green ledger that brought the engineer to the house. He arrived in the first week of September, on foot,
with mud to his knees and a long leather case on his back, and he asked whether it was true that somebody in the
valley had written down the height of the river every morning for nine years. Anselm thought that he was joking. Ines
did not say anything; she went upstairs and came back with the book, and laid it on the table in front of him, and
watched his face as he turned the pages.

"Every day," he said at last. "Even in the winter."

"In the winter it is easier," she answered. "There is less to do."

The engineer was called Mattias Voll. He worked for a company that meant to build a dam at the narrows, ten miles
downstream, and for two years he had been trying to find out how much water came through the valley in a dry month.
There were figures for the capital and for the coast, but for the hills there was nothing at all except the memory of
old men, who agreed about the great flood and disagreed about everything else. He had walked up the river from village
to village, asking at every mill and every bridge. At the last bridge a carter had laughed at him and told him about
the girl who wrote down the swallows.

He stayed for eleven days. In the mornings he took his instruments out of the leather case and measured the bed of the
river from one bank to the other, a step at a time, calling out the depths while Ines wrote them down. He showed her
how to time a float between two ropes, and how to find the speed of the water from it, and why the water at the bottom
is slower than the water at the top. In the afternoons he sat at the kitchen table with the green ledger and copied the
heights into columns. For each height there was a depth, and for each depth a width and a speed, so that little by
little the numbers which she had written down for no reason turned into a quantity of water, and the quantity of water
turned into a curve upon a sheet of squared paper.

She had never seen one before. She looked at it for a long time. There was the wet year when the bridge was carried
away, a peak like a church tower; there were the four weeks of frost in which the line lay flat; there was the summer
when her mother died, low and even, as though nothing had happened at all.

"This is where you were ill," said the engineer, and put his finger on a place where the line was dotted.

"No," said Ines. "That is where the stone was covered by ice, and I guessed. I have marked it in the margin. I did not
think that it would be right to write a number as if I had seen it."

He turned back to the page and found the mark, a small circle beside the figure, and then he found the others: there
were twenty-three of them in nine years. He said that he had worked with men who had been to the university for six
years and who would not have drawn a single circle.

Anselm Roke, meanwhile, had been thinking about the dam. He was slow to begin thinking, but once he had begun it was
difficult to make him stop. A dam at the narrows would hold the water back, and the water would rise; that was what a
dam was for. The question was how far. He asked it at supper on the ninth day, while he was cutting the bread, in the
voice of a man who asks whether it is going to rain.

"Not as far as this," said the engineer. "Ten miles is a long way, and the valley is steep below the chapel. The lake
will end at the meadows."

"Which meadows?"

"Those of the lower farm, I believe. Where the poplars are."

"That is the Haldane farm," said Anselm. He went on cutting the bread, although there was already enough of it. "They
have been there longer than we have."

"They will be paid for it," said the engineer.

Nobody answered him. The clock in the hall, which was always seven minutes fast, struck eight. After a while Ines got
up and closed the window, because the evenings were growing cold, and when she sat down again she asked how it was
decided what a meadow was worth. The engineer explained that there was a table. For each kind of land there was a price,
arable or pasture or wood, and the price was multiplied by the area, and to this was added a sum for the buildings and
a further sum for the inconvenience. It was considered generous. He had seen the table himself, and he could say that
it had been drawn up by fair-minded people.

"And what does it say about the poplars?" asked Ines.

He began to answer, and then he saw that she was not asking about timber.

On the eleventh day he packed his instruments into the leather case and thanked them both. To Ines he gave the sheet of
squared paper, of which he had made a copy, and a pencil with a metal cap. He told her that the company would certainly
wish to pay her for the use of the ledger, and that he would see to it. She said that she would rather have an answer
to a question. If the dam were built a little lower than they had planned it, so that the lake ended at the ford and
not at the meadows, how much would be lost?

He had the curve in his case, and he knew the shape of the valley by heart, so that it took him no more than a quarter
of an hour. He worked standing up, at the end of the table, with his hat on. In a wet year nothing would be lost, or
almost nothing; the water would go over the top in either case. In a dry year there would be perhaps one part in twelve
less than before. It depended on how many dry years there were in ten, and until a week ago nobody could have said how
many there were in ten. Now it could be said. There were two.

"Then it is one part in sixty," said Ines, "if you take all the years together."

"One part in sixty," he agreed. He looked at the number for some time, as if it had been written by somebody else.

He did not promise her anything. He was an honest man, and he knew how little his opinion counted in the office where
such things were settled. But he wrote down the height of the ford, and the two figures, and drew beside them, after a
moment, a small circle.

They heard nothing all through the autumn. The rye was brought in and ground; the swallows left on the fourteenth,
which was early; the first ice formed along the edge of the race. Anselm sold the old cart and bought oak with the
money, and in the dry weeks before Christmas, when the river was at its lowest, he mended the weir after all. He said
that if there was going to be a great deal of talk about water, he would like to have some of his own. By the new year
the pool was full again. It froze, and the boys who had walked across the gravel in August slid across it from one side
to the other, shouting, with sacks tied round their shoes.

The letter came in March. It was addressed to Miss I. Roke, and it was printed, except for her name and for three lines
at the bottom. The printed part said that the company thanked all those who had assisted in the survey, that the plans
had been revised in certain respects, and that they could be seen at the town hall on any weekday between ten and four.
The three lines were in the engineer's handwriting. He wrote that he was sorry to have taken so long; that the crest
had been set five feet lower; and that somebody at the head office, looking through the calculation, had asked what the
little circle meant, and he had been obliged to tell the whole story from the beginning.

Ines read the letter twice and put it into the ledger, between the pages for that week. Then she took the pencil with
the metal cap and went down to the river, as she did every morning, to see how high the water stood against the second
stone. There had been rain in the hills. It was a hand's breadth above the mark, brown and quick, and carrying twigs;
and because the weir was sound again it made, in falling, a noise that could be heard all the way to the road.

What is measured is not always what is wanted. A reader who comes to such a book with a question in mind will nearly
always find that the question is not answered in it: the heights were taken at the wrong stone, or at the wrong hour,
or they stop in the very year that matters. And yet there is a difference between a valley in which somebody has kept a
record and one in which nobody has. In the second kind, every argument begins again from the start, and it is won by
whoever is the least tired. In the first there is at least a line upon a sheet of paper, with here and there a circle
beside it to show where the writer was not sure; and people who would not give way to one another will sometimes, if
they are allowed to take their time about it, give way to that.
"""
