"""The words that markers are drawn from: common, concrete, spelled apart, so that a small model repeats them whole.

Read next: ``markers.py``.
"""

MARKER_WORDS: tuple[str, ...] = tuple(
    """
    acorn almond amber anchor ankle apron arrow attic autumn badge bagel bamboo banjo barley barrel basil basket beach
    beaver beetle berry bishop blanket blossom bottle boulder bracelet branch brandy bridge bronze broom bucket buffalo
    butter button cabin cactus camel candle canoe canyon carbon cargo carpet carrot castle cedar cellar chalk cherry
    chimney cinema circus cliff clover cobalt cobra coffee comet copper coral cotton cradle crayon cricket crystal
    curtain cushion dagger daisy desert diamond dolphin dragon drum eagle elbow engine falcon feather fence
    fiddle flame flute forest fossil fountain fox galaxy garden garlic ginger glacier glove goblet goose granite grape
    guitar hammer harbor harvest hazel helmet heron hollow honey horizon hunter iceberg igloo indigo island ivory
    jacket jaguar jasmine jelly jungle kayak kettle kitten koala ladder lagoon lantern laurel lemon leopard
    lilac linen lizard lobster lotus magnet mango maple marble meadow melon mirror monkey mosaic muffin
    mustard napkin nectar needle nickel noodle nutmeg oasis ocean olive onion opal orange orchid oyster paddle palace
    panda panther papaya parsley peacock pebble pencil pepper piano picnic pigeon pirate planet plum
    pocket pony poppy potato prairie pretzel pumpkin puppet quail quartz quilt rabbit raccoon radish raisin raven ribbon
    river robin ruby saffron salmon satin scarf shadow shelter silver sparrow spider spoon squirrel
    summit sunset swan temple thistle thunder tiger timber tomato topaz tractor trumpet tulip tundra turkey
    turtle umbrella valley vanilla velvet violet violin volcano wagon walnut walrus willow window winter wolf
    yogurt zebra zinc zipper
    """.split()  # noqa: SIM905  a list of literals is four times as long
)

TOPICS = (
    "the delivery", "a complaint", "the lease", "an invoice", "the survey", "a refund", "the contract", "an order",
    "the visit", "a repair",
)  # fmt: skip

CLERKS = ("Adams", "Bell", "Carter", "Dixon", "Ellis", "Foster", "Grant", "Hayes", "Irwin", "Jones", "Keller", "Lowe")
