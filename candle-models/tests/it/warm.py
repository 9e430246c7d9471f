"""A Python that has imported NumPy and ONNX Runtime, and runs programs with them in processes that it forks: SOCKET CLIENT.

Importing takes longer than most of the programs run. Writes CLIENT, which takes a program and its arguments as `python3` does, and prints a line when it
may be called. Ends when its own input does.
"""

import json
import os
import pathlib
import runpy
import select
import socket
import sys
import traceback

import numpy
import onnxruntime

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [json.dumps([os.getcwd(), sys.argv[1:]]).encode()], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""


def run(directory, arguments):
    os.chdir(directory)
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(caller):
    asked, streams, _, _ = socket.recv_fds(caller, 1 << 16, 3)
    for stream, place in zip(streams, range(3)):
        os.dup2(stream, place)
    status = run(*json.loads(asked))
    sys.stdout.flush()
    sys.stderr.flush()
    caller.send(bytes([status]))


def main(address, client):
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    client = pathlib.Path(client)
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o700)
    print("ready", flush=True)
    while server in select.select([server, sys.stdin], [], [])[0]:
        caller, _ = server.accept()
        if os.fork() == 0:
            try:
                serve(caller)
            finally:
                os._exit(0)
        caller.close()


main(*sys.argv[1:])
