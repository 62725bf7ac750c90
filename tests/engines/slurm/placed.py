"""A rank that says where it is, meets the others twice, and adds up with them."""

import dataclasses
import json
import os
import socket
import sys

import numpy as np

import horoacc as hvd
from horoacc import basics
from horoacc.launcher import environment

shown = dataclasses.asdict(environment.detect())
shown["secret"] = "HOROACC_SECRET" in os.environ  # until init()
for _ in range(2):
    hvd.init()
    shown["sum"] = float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)[0])
    shown["met"] = basics.bootstrap()
    hvd.barrier()
    hvd.shutdown()
torch = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
shown |= {"host": socket.gethostname(), "torch": torch}
sys.stdout.write(json.dumps(shown) + "\n")
