"""The environment variables by which launcher and agent tell a run's workers where they belong."""

#: The file through which the ranks of one machine meet; unset: torchrun's own rendezvous.
RENDEZVOUS_FILE = "WATTLAW_RENDEZVOUS_FILE"
#: The process id of the node agent, with which its workers end.
AGENT_PID = "WATTLAW_AGENT_PID"
#: The folder of the run that a command belongs to, and the number of its attempt.
RUN_FOLDER = "WATTLAW_RUN_FOLDER"
ATTEMPT = "WATTLAW_ATTEMPT"
