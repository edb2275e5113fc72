"""Files of known tools that are not read: what they are, and what to import instead.

Each is a pattern of the first characters of a file, what it is, and what to do.
"""

import re

_TABLE = "write a table with a run per row, and name its columns with --map"
_WANDB = "export the table of runs of the project as CSV, and name its columns with --map"
_MLFLOW = (
    "write the runs with: mlflow experiments csv -x EXPERIMENT; and name its columns with --map"
)
_HDF5 = "import the .hdf5 file that perun writes for the same application"
#: The first characters of a file, what it is, and what to do.
FOREIGN = tuple(
    (re.compile(pattern, re.DOTALL), what, remedy)
    for pattern, what, remedy in (
        (r'\{\s*"id":\s*"[^"]*",\s*"type":\s*\d+,\s*"metadata":', "perun's JSON export", _HDF5),
        (
            r'\[\s*\{\s*"name":\s*"[^"]* - (?:RUNTIME|ENERGY|POWER|\w+_UTIL)"',
            "perun's benchmark export", _HDF5,
        ),
        (
            r"[^\n]*run id,hostname,device_group,sensor,unit,magnitude,timestep,value",
            "perun's CSV export, which has no start time", _HDF5,
        ),
        (r"[-=\s]*PERUN REPORT", "perun's text report", _HDF5),
        (r"(?:#[^\n]*\n|\s)*PARAMETERS?\s+\w[^\n]*\n.*\b(?:POINTS|METRIC|REGION|DATA)\b",
         "a text file of Extra-P", _TABLE),
        (r'\{\s*"params":\s*\{[^{}]*\},.*"value":', "a JSON-lines file of Extra-P", _TABLE),
        (r'\{\s*"parameters":\s*\[.*"(?:measurements|callpaths?|points)":',
         "a JSON file of Extra-P", _TABLE),
        (
            r"Time,\d\d-\d\d-\d{4} \d\d:\d\d:\d\d(?:\.\d+)?,Watts,",
            "the log of SPEC's PTDaemon (spl.txt of MLPerf), power of a node",
            "write a table with a run per row, and its energy as node_energy_j with --map",
        ),
        (
            r'\{\s*"status":\s*"success",\s*"data":\s*\{\s*"resultType":',
            "an answer of Prometheus without the name of a metric of DCGM",
            "query the metric alone, such as DCGM_FI_DEV_POWER_USAGE, without sum or avg",
        ),
        (
            r"#\s*Entity\s", "the table of dcgmi dmon",
            "save the metrics of the DCGM exporter, or log with nvidia-smi",
        ),
        (
            r"[^{]*:::MLPv0\.[56]\.\d ", "a log of MLPerf Training v0.5 or v0.6",
            "write a table with a run per row, and name its columns with --map",
        ),
        (r"=*\s*MLPerf Results Summary", "a summary of MLPerf Inference", _TABLE),
        (r'[^\n]*"?Step"?,[^\n]*__MIN"?,[^\n]*__MAX"?',
         "a chart exported from Weights & Biases", _WANDB),
        (r'\{(?=[^\n]*"_timestamp":)(?=[^\n]*"_(?:step|runtime)":)',
         "a history of Weights & Biases", _WANDB),
        (r"(?:1\d{12} [-+.\deEnaif]+ \d+\r?\n){2}", "a metric of MLflow", _MLFLOW),
        (r"artifact_uri:|[^\n]*\nartifact_uri:", "the description of a run of MLflow", _MLFLOW),
        (
            r'\{(?!.*"log_history").*"train_runtime":',
            "results of Hugging Face's Trainer without their steps",
            "import trainer_state.json of the same folder",
        ),
        (
            r'"?Wall time"?,"?Step"?,"?Value"?\s',
            "a scalar downloaded from TensorBoard",
            "import the event file, or the folder of the training",
        ),
    )
)  # fmt: skip
