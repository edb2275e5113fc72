"""Linear regression with JAX, which prints a line for each step."""

import os
import time

import jax
import jax.numpy as jnp

STEPS, BATCH = int(os.environ.get("STEPS", "60")), 32


@jax.jit
def update(weights, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.01 * gradient, loss


weights = jnp.zeros(8)
for step in range(1, STEPS + 1):
    x = jax.random.normal(jax.random.key(step), (BATCH, 8))
    weights, loss = update(weights, x, x @ jnp.arange(8.0))
    time.sleep(0.02)
    print(f"step {step} seen {step * BATCH} loss {float(loss):.4f}", flush=True)
