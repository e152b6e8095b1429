"""The demo's prompts: eight openings of tales like those that the bundled model was trained on."""

from llama_herd.tasks.job_fields import SamplingFields

PROMPTS = (
    "Once upon a time, a curious fox named Mia lived by the river. One sunny morning, Mia lost her red kite.",
    "Long ago, a kind baker named Otto lived in a small village. One evening, a great storm came, and Rosa "
    "the hedgehog knocked at the door.",
    "Once, a shy owl named Theo lived under an old oak. Theo was afraid of the dark, but he told nobody.",
    "Once upon a time, a young gardener named Clara lived on a green hill. One warm day, Clara found a seed "
    "and planted it behind the house.",
    "Long ago, a quiet mouse named Pip lived behind the mill. One windy night, Pip heard a strange sound: "
    "tap tap tap.",
    "Once, a lively otter named Finn lived beside the lake. Finn had never seen the sea, so one bright "
    "morning he set out on foot.",
    "Once upon a time, a cheerful goose named Greta lived close to the lighthouse. One clear night, Greta "
    "saw a falling star and wished for a true friend.",
    "Long ago, an old bear named Karl lived at the edge of the forest. One cold evening, Karl made onion "
    "soup for supper.",
)

#: The same seeds each time, so that the demo tells the same tales wherever it runs.
SAMPLING: SamplingFields = {"max_tokens": 160, "temperature": 0.7, "top_p": 0.95}
