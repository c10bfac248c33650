"""The words that markers are drawn from: common, concrete, spelled far apart, so that a small model repeats them whole.

No word resembles another by 80 percent or stands inside another. Read next: ``markers.py``.
"""

FIRST = """
    abacus album almond anchor antler archer aspen atlas avocado balcony bamboo barbell basement bassoon beach
    beehive bicycle bishop blossom bonnet bouquet bracelet bridge bronco bucket bulldog burrow button caboose
    calico canary canyon cardinal carpet castle cedar cement chalk cheetah chimney cinema clarinet cobalt coconut
    comet copper cotton coyote cricket cupboard cushion dagger decoy desert dinosaur dormouse eagle emerald
    envelope estuary falcon fender fiesta flamingo fondue fortune fresco galaxy garlic ginger glove goose granite
    grocer gymnast harbor hazel heron honey hyacinth indigo jacket jelly kettle ladder laurel lilac lobster mango
    meadow monkey mustard needle nutmeg olive orchid palace papaya pebble piano pirate poppy pretzel quail raccoon
    raven robin scarf silver squirrel temple tiger topaz tulip turtle vanilla violin walnut window zebra
"""

SECOND = """
    acorn alcove alpine ankle apricot armada asphalt attic badge ballad banjo barley basil battery beacon beetle
    birch bison blueprint bottle bowling branch brigade bronze buffalo bumper bushel cabbage cactus camel candle
    caravan cargo carrot catfish cellar centaur chapel cherry chisel cinnamon cliff cobbler coffee compass
    corridor cougar crater crouton currant cyclone dahlia delta diamond dolphin dragon eclipse emperor equator
    factory feather festival fjord flannel footpath fossil frigate gallery gazelle giraffe goblet gorilla grape
    guava hammer harvest hedgehog hickory horizon iceberg island jaguar jungle kitten lagoon lemon linen lotus
    maple melon mosaic napkin nickel oasis onion oyster panda parsley pencil picnic planet potato pumpkin quartz
    radish ribbon saffron shadow spider summit thistle timber tractor tundra umbrella velvet volcano walrus winter
    zipper
"""

THIRD = """
    airport algebra amber anthem apron arrow astronaut autumn bakery balloon banner barrel basket bayou beaver
    berry biscuit blanket bonfire boulder boxcar brandy broccoli broom bugle bunker butter cabin calendar campus
    canoe carbon caribou cashew cavern cello chalet chariot chestnut cider circus clover cobra colony condor
    cottage courier crescent crystal curtain cypress daisy dentist diesel domino dungeon elbow engine espresso
    fairway fence fiddle flame flute forest fountain furnace garden geyser glacier gondola gospel gravel guitar
    hamster haystack helmet hollow hunter igloo ivory jasmine kayak koala lantern leopard lizard magnet marble
    mirror muffin nectar noodle ocean orange paddle panther peacock pepper pigeon pocket prairie puppet rabbit
    raisin river satin shelter spoon sunset thunder tomato trumpet turkey valley violet wagon willow yogurt
"""

DIGITS = 4

LISTS: tuple[tuple[str, ...], ...] = (
    *(tuple(words.split()) for words in (FIRST, SECOND, THIRD)),
    tuple(f"{number:0{DIGITS}}" for number in range(10**DIGITS)),
)
"""A marker is one of each, in this order."""

TOPICS = (
    "the delivery", "a complaint", "the lease", "an invoice", "the survey", "a refund", "the contract", "an order",
    "the visit", "a repair",
)  # fmt: skip

CLERKS = ("Adams", "Bell", "Carter", "Dixon", "Ellis", "Foster", "Grant", "Hayes", "Irwin", "Jones", "Keller", "Lowe")
