//! Sizes, padding and cropping, without a device.
