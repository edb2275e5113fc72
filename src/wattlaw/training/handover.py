"""The environment variables by which launcher and agent tell a run's workers where they belong."""

#: The file through which the ranks of one machine meet; unset: torchrun's own rendezvous.
RENDEZVOUS_FILE = "WATTLAW_RENDEZVOUS_FILE"
#: The process id of the node agent, with which its workers end.
AGENT_PID = "WATTLAW_AGENT_PID"
