//! Passes leave what programs calculate as it is: random programs, a program that one of them was
//! made for, and every fusion by what is no ordinary number.

#[path = "../every_device/mod.rs"]
mod every_device;
mod generate;
#[path = "../library/mod.rs"]
mod library;
mod random;
mod scalars;
mod specials;
