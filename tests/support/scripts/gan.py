"""Two optimizers: the discriminator takes two steps for each of the generator."""

import torch
from own_timer import Timer
from torch.utils.data import DataLoader

generator, discriminator = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
of_generator = torch.optim.Adam(generator.parameters())
of_discriminator = torch.optim.Adam(discriminator.parameters())
timer = Timer()
for number, real in enumerate(DataLoader(torch.randn(65, 4), batch_size=5)):
    of_discriminator.zero_grad()
    fake = generator(torch.randn(5, 4))
    (discriminator(fake.detach()).mean() - discriminator(real).mean()).backward()
    of_discriminator.step()
    timer.add(len(real))
    timer.step()
    if number % 2:
        of_generator.zero_grad()
        (-discriminator(generator(torch.randn(5, 4))).mean()).backward()
        of_generator.step()
timer.end()
