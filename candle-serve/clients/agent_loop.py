"""An agent at 60 Hz whose policy is served by candle-serve: a sequence over gRPC, with a deadline for every frame.

    pip install tritonclient[grpc] numpy
    python agent_loop.py [--url HOST:PORT] [--model policy-mamba] [--frames N] [--key KEY]

The observation is a constant here; a game's own stands in its place.
"""

import argparse
import time
import uuid

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

FRAME = 1 / 60
# Before anything was answered nobody plays yet: the first frame may wait for connections and models.
FIRST = 60

parser = argparse.ArgumentParser()
parser.add_argument("--url", default="127.0.0.1:8001")
parser.add_argument("--model", default="policy-mamba")
parser.add_argument("--frames", type=int, default=300)
parser.add_argument("--key")
options = parser.parse_args()

client = grpc.InferenceServerClient(options.url)
headers = {"authorization": f"Bearer {options.key}"} if options.key else None
features, ids = grpc.InferInput("features", [1, 288], "FP32"), grpc.InferInput("ids", [1, 6], "UINT32")
ids.set_data_from_numpy(np.full((1, 6), 14, np.uint32))
outputs = [grpc.InferRequestedOutput("action")]


def step(start, end):
    """The action of a frame; or None, and whether the sequence has to begin anew."""
    features.set_data_from_numpy(np.full((1, 288), 0.1, np.float32))
    marks = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    try:
        answer = client.infer(options.model, [features, ids], outputs=outputs, headers=headers, client_timeout=FRAME if answered else FIRST, **marks)
        return answer.as_numpy("action")[0], False
    except InferenceServerException as error:
        code = error.status().removeprefix("StatusCode.")
        # 504, and a call that was given up: the frame is over. The server steps what has begun, and nothing else.
        # 429 and 503: too many at once, or a server that is restarted. The next frame asks again.
        if code in ("DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"):
            return None, start
        # 409: a step has failed and the state is lost. 400: the sequence was idle for too long, or its server is another one.
        if code == "FAILED_PRECONDITION" or (code == "INVALID_ARGUMENT" and not start):
            return None, True
        raise


sequence, start = f"agent-{uuid.uuid4()}", True
action, answered, anew = None, 0, 0
deadline = time.monotonic()
for frame in range(options.frames):
    deadline = deadline + FRAME if answered else time.monotonic() + FRAME
    found, again = step(start, end=frame + 1 == options.frames)
    anew, start = anew + (again and not start), again
    if found is not None:
        # A frame without an answer presses what the last one did.
        action, answered = found, answered + 1
    time.sleep(max(0, deadline - time.monotonic()))
print(f"{answered} of {options.frames} frames answered, {anew} times begun anew, last action {action}")
