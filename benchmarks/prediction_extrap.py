"""Answers lines [counts, times, count] with the time that Extra-P's model of them predicts.

It is run by the Python that has Extra-P (``make test-extrap``), which needs an older numpy.
"""

import json
import sys


def main() -> None:
    from extrap.entities.callpath import Callpath
    from extrap.entities.coordinate import Coordinate
    from extrap.entities.measurement import Measurement
    from extrap.entities.metric import Metric
    from extrap.modelers.single_parameter.basic import SingleParameterModeler

    modeler = SingleParameterModeler()
    modeler.allow_negative_exponents = True  # time falls with the number of GPUs
    for line in sys.stdin:
        counts, times, at = json.loads(line)
        measured: dict[float, list[float]] = {}
        for count, time_s in zip(counts, times, strict=True):
            measured.setdefault(count, []).append(time_s)
        model = modeler.create_model(
            [
                Measurement(Coordinate(count), Callpath("step"), Metric("time"), found)
                for count, found in sorted(measured.items())
            ]
        )
        print(float(model.hypothesis.function.evaluate(at)), flush=True)


if __name__ == "__main__":
    main()
