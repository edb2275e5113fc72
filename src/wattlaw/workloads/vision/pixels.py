"""What ImageNet's pixels are like."""

#: Mean and standard deviation of red, green and blue over ImageNet's training images, from 0 to 1,
#: as torchvision's models take them.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
