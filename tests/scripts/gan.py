"""Two optimizers: the discriminator takes two steps for each of the generator."""

import os

import torch
from torch.utils.data import DataLoader

generator, discriminator = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
of_generator = torch.optim.Adam(generator.parameters())
of_discriminator = torch.optim.Adam(discriminator.parameters())
steps = samples = 0
for number, real in enumerate(DataLoader(torch.randn(65, 4), batch_size=5)):
    of_discriminator.zero_grad()
    fake = generator(torch.randn(5, 4))
    (discriminator(fake.detach()).mean() - discriminator(real).mean()).backward()
    of_discriminator.step()
    steps += 1
    samples += len(real)
    if number % 2:
        of_generator.zero_grad()
        (-discriminator(generator(torch.randn(5, 4))).mean()).backward()
        of_generator.step()
print(f"RESULT pid={os.getpid()} steps={steps} samples={samples}")
