"""candle-serve in Ray Serve: each replica starts the program and passes requests on to it.

    CANDLE_SERVE=target/release/candle-serve CANDLE_BUNDLES=weights serve run candle-serve/deploy/ray_serve.py:app

Requests are those of candle-serve, at Ray's port: http://127.0.0.1:8000/v2/models/NAME/infer. With several replicas a sequence's requests have
its id in the header `serve_multiplexed_model_id` as well, by which Ray prefers the replica that has it; CANDLE_SNAPSHOTS, a folder or a
redis:// URL, is where another one goes on from, and every step is written there before its answer, as that is no more than a preference.
"""

import os
import subprocess
import tempfile

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

# What is of one connection, and nothing for the next.
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "te", "trailer"}


@serve.deployment(num_replicas=int(os.environ.get("CANDLE_REPLICAS", "1")), max_ongoing_requests=256, graceful_shutdown_timeout_s=40)
class CandleServe:
    def __init__(self, program: str, bundles: str, snapshots: str | None):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self.folder.name, "http")
        command = [program, bundles, "--http", f"unix:{self.socket}", "--grpc", f"unix:{self.folder.name}/grpc", "--grace", "0"]
        if snapshots:
            command += ["--snapshots", snapshots, "--snapshot-every", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        # A line once the models are loaded; the end where none could be.
        if not self.process.stdout.readline():
            raise RuntimeError(f"candle-serve has ended with code {self.process.wait()}: its standard error has why")
        self.session = None

    def check_health(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"candle-serve has ended with code {self.process.returncode}")

    @serve.multiplexed(max_num_models_per_replica=4096)
    async def sequence(self, identity: str):
        """Tells Ray that this replica has the sequence."""
        return identity

    async def __call__(self, request: Request) -> Response:
        identity = serve.get_multiplexed_model_id()
        if identity:
            await self.sequence(identity)
        if self.session is None:
            # Made where it is used: it belongs to the loop that runs now.
            self.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.socket, limit=0), auto_decompress=False)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP]
        body = await request.body()
        async with self.session.request(request.method, f"http://candle-serve{target}", headers=headers, data=body) as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            return Response(await answer.read(), answer.status, headers)

    def __del__(self):
        if process := getattr(self, "process", None):
            # Writes its last snapshots.
            process.terminate()
            process.wait()


app = CandleServe.bind(os.environ.get("CANDLE_SERVE", "candle-serve"), os.path.abspath(os.environ.get("CANDLE_BUNDLES", "weights")), os.environ.get("CANDLE_SNAPSHOTS"))
