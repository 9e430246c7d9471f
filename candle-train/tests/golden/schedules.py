#!/usr/bin/env python3
"""Learning rates of PyTorch's schedulers, one per step, as the golden values of src/schedule.rs.

    python3 candle-train/tests/golden/schedules.py > candle-train/tests/golden/schedules.json

Made with PyTorch 2.11.0.
"""

import json
import warnings

import torch
from torch.optim import lr_scheduler as lr

PEAK = 0.02
warnings.filterwarnings("ignore")  # SequentialLR calls its parts in a way that they warn about.


def rates(make, steps, warmup=0):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = make(optimiser)
    if warmup:
        rise = lr.LinearLR(optimiser, start_factor=1 / warmup, total_iters=warmup - 1)
        scheduler = lr.SequentialLR(optimiser, [rise, scheduler], milestones=[warmup])
    found = [optimiser.param_groups[0]["lr"]]
    while len(found) < steps:
        optimiser.step()
        scheduler.step()
        found.append(optimiser.param_groups[0]["lr"])
    return found


def case(ours, total, make, warmup=0):
    return {"schedule": {"peak": PEAK, "warmup": warmup, **ours}, "total": total, "rates": rates(make, total, warmup)}


def restarts(period, growth, floor):
    return lambda o: lr.CosineAnnealingWarmRestarts(o, T_0=period, T_mult=growth, eta_min=floor * PEAK)


def one_cycle(total, rise, floor):
    # The start is a 25th of the peak; PyTorch gives the end as a share of the start.
    share = {"div_factor": 25, "final_div_factor": 1 / (25 * floor)}
    return lambda o: lr.OneCycleLR(o, max_lr=PEAK, total_steps=total, pct_start=rise, cycle_momentum=False, **share)


cases = [
    case({"shape": "constant"}, 12, lambda o: lr.ConstantLR(o, factor=1.0), warmup=3),
    case({"shape": "cosine", "floor": 0.1}, 40, lambda o: lr.CosineAnnealingLR(o, T_max=40 - 8 - 1, eta_min=0.1 * PEAK), warmup=8),
    case({"shape": "linear", "floor": 0.1}, 40, lambda o: lr.LinearLR(o, 1.0, 0.1, total_iters=39)),
    case({"shape": "restarts", "period": 7, "growth": 1, "floor": 0.0}, 40, restarts(7, 1, 0.0)),
    case({"shape": "restarts", "period": 5, "growth": 2, "floor": 0.1}, 80, restarts(5, 2, 0.1), warmup=6),
    case({"shape": "step", "period": 7, "decay": 0.5, "floor": 0.0}, 40, lambda o: lr.StepLR(o, step_size=7, gamma=0.5)),
    case({"shape": "step", "period": 9, "decay": 0.1, "floor": 0.0}, 40, lambda o: lr.StepLR(o, step_size=9, gamma=0.1), warmup=5),
    case({"shape": "one_cycle", "rise": 0.3, "floor": 4e-6}, 40, one_cycle(40, 0.3, 4e-6)),
    case({"shape": "one_cycle", "rise": 0.45, "floor": 0.01}, 37, one_cycle(37, 0.45, 0.01)),
]
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
