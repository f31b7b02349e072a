"""Trains the classifier of request classes and writes its weights.

    python benchmarks/train_classifier.py [--write] [--json]

On `data/request_classes/train.jsonl` (prompts written for this project); tested on `held_out.jsonl`, written apart, and
on the prompts of `data/prompts.jsonl`, which others wrote. Prints the confusion matrix and the time a prompt takes.
Without --write the shipped weights are left alone. The same data give the same weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
from scipy import optimize, sparse

from decodeloop.policy.classifier import CLASSES, SURE, Classifier, features

DATA = Path(__file__).parent / "data"
WEIGHTS = Path(__file__).parents[1] / "src" / "decodeloop" / "policy" / "data" / "classes.npz"
PENALTY = 1e-5  # of squared weights
LEAST = 2  # prompts that must have a feature


def read(path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["class"], row["prompt"]) for row in rows]


def vocabulary(texts: list[str]) -> list[str]:
    """Features that more than one prompt has."""
    counts = Counter(name for text in texts for name in features(text))
    return sorted(name for name, count in counts.items() if count >= LEAST and "\n" not in name)


def matrix(texts: list[str], names: list[str]) -> sparse.csr_matrix:
    """[texts, names] 1 over the square root of the number of features that a text has."""
    rows, columns, values = [], [], []
    place = {name: i for i, name in enumerate(names)}
    for i, text in enumerate(texts):
        found = [place[name] for name in features(text) if name in place]
        rows += [i] * len(found)
        columns += found
        values += [1.0 / np.sqrt(len(found))] * len(found)
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(texts), len(names)))


def train(pairs: list[tuple[str, str]]) -> Classifier:
    names = vocabulary([text for _, text in pairs])
    x = matrix([text for _, text in pairs], names)
    y = np.zeros((len(pairs), len(CLASSES)))
    y[np.arange(len(pairs)), [CLASSES.index(name) for name, _ in pairs]] = 1.0
    share = 1.0 / (y @ y.sum(axis=0) * len(CLASSES))  # every class weighs the same

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[: -len(CLASSES)].reshape(len(names), -1), flat[-len(CLASSES) :]
        scores = x @ w + b
        scores -= scores.max(axis=1, keepdims=True)
        log_z = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        error = (np.exp(scores - log_z) - y) * share[:, None]
        value = -float(share @ (y * (scores - log_z)).sum(axis=1)) + PENALTY * float((w * w).sum())
        return value, np.concatenate([(x.T @ error + 2 * PENALTY * w).ravel(), error.sum(axis=0)])

    start = np.zeros((len(names) + 1) * len(CLASSES))
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    w, b = found[: -len(CLASSES)].reshape(len(names), -1), found[-len(CLASSES) :]
    scale = float(np.abs(w).max()) / 127
    return Classifier(names, np.round(w / scale).astype(np.int8), scale, b)


def judged(classifier: Classifier, pairs: list[tuple[str, str]]) -> dict:
    """Confusion: declared class -> guessed class -> prompts. unsure: those below the threshold."""
    confusion = {str(name): {str(other): 0 for other in CLASSES} for name in CLASSES}
    unsure = right = 0
    for name, text in pairs:
        guess = classifier.guess(text)
        unsure += guess is None
        said = classifier(text)
        right += said == name
        confusion[name][str(said)] += 1
    return {"prompts": len(pairs), "accuracy": right / len(pairs), "unsure": unsure, "confusion": confusion}


def microseconds(classifier: Classifier, pairs: list[tuple[str, str]]) -> dict[str, float]:
    texts = [text for _, text in pairs]
    times = []
    for _ in range(30):
        for text in [*texts[::10], "word " * 200_000]:
            started = time.perf_counter()
            classifier(text)
            times.append(1e6 * (time.perf_counter() - started))
    return {"median": round(float(np.median(times)), 1), "p95": round(float(np.quantile(times, 0.95)), 1)}


def print_confusion(found: dict) -> None:
    names = [name for name, row in found["confusion"].items() if sum(row.values())]
    print(f"{'':<18}" + "".join(f"{name[:9]:>10}" for name in found["confusion"]))
    for name in names:
        print(f"{name:<18}" + "".join(f"{count or '.':>10}" for count in found["confusion"][name].values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the shipped weights")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    own = DATA / "request_classes"
    pairs, held = read(own / "train.jsonl"), read(own / "held_out.jsonl")
    classifier = train(pairs)
    result = {
        "threshold": SURE,
        "train": judged(classifier, pairs),
        "held_out": judged(classifier, held),
        "others": judged(classifier, read(DATA / "prompts.jsonl")),
        "us_a_prompt": microseconds(classifier, held),
        "bytes": len(classifier.to_bytes()),
    }
    for name in ("train", "held_out", "others"):
        found = result[name]
        print(f"{name}: {found['accuracy']:.1%} of {found['prompts']} right, {found['unsure']} unsure")
    print_confusion(result["held_out"])
    print_confusion(result["others"])
    print(f"{result['us_a_prompt']} us a prompt; {result['bytes']} bytes of weights")
    if arguments.write:
        WEIGHTS.parent.mkdir(exist_ok=True)
        WEIGHTS.write_bytes(classifier.to_bytes())
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
