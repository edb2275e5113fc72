"""Loads a file with Extra-P's own reader and models it; run by the Python that has Extra-P."""

import json
import sys

from extrap.fileio.file_reader.text_file_reader import TextFileReader
from extrap.modelers.model_generator import ModelGenerator

path = sys.argv[1]
experiment = TextFileReader().read_experiment(path)
parameters = [parameter.name for parameter in experiment.parameters]
generator = ModelGenerator(experiment)
if len(parameters) == 1:  # more need five values of each
    generator.modeler.allow_negative_exponents = True  # time falls with the number of GPUs
    generator.model_all()
series = []
for (callpath, metric), measurements in experiment.measurements.items():
    one = {
        "callpath": callpath.name,
        "metric": metric.name,
        "values": [
            [*m.coordinate.as_tuple(), float(m.mean), float(m.minimum), float(m.maximum)]
            for m in measurements
        ],
    }
    if len(parameters) == 1:
        function = generator.models[callpath, metric].hypothesis.function
        one["model"] = function.to_string(*experiment.parameters)
        one["predicted"] = [float(function.evaluate(row[0])) for row in one["values"]]
    series.append(one)
json.dump({"parameters": parameters, "series": series}, sys.stdout)
