#!/usr/bin/env python3
"""Compares a run's event files, as TensorBoard reads them, with its metrics.jsonl. Argument: the run's directory."""

import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def scalars(path, value, into):
    """The numbers in `value` by tag."""
    if isinstance(value, dict):
        for key, inner in value.items():
            scalars(f"{path}/{key}" if path else key, inner, into)
    elif isinstance(value, (int, float)) and path != "step":
        into[path] = value


def main():
    directory = sys.argv[1]
    expected = {}
    with open(f"{directory}/metrics.jsonl") as file:
        for line in file:
            record, found = json.loads(line), {}
            scalars("", record, found)
            for tag, value in found.items():
                expected.setdefault(tag, []).append((record["step"], value))
    events = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = sorted(events.Tags()["scalars"])
    assert tags == sorted(expected), f"tags: {tags}, expected {sorted(expected)}"
    for tag, points in expected.items():
        found = events.Scalars(tag)
        steps = [event.step for event in found]
        assert steps == [step for step, _ in points], f"{tag}: steps {steps}, expected {points}"
        for event, (step, value) in zip(found, points):
            assert math.isclose(event.value, value, rel_tol=1e-6), f"{tag} at {step}: {event.value}, expected {value}"
    texts = [text.decode() for event in events.Tensors("configuration") for text in event.tensor_proto.string_val]
    assert texts and all("```toml" in text for text in texts), texts
    print(len(expected), "tags,", sum(map(len, expected.values())), "values,", len(texts), "texts")


main()
