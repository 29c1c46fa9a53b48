//! Passes leave what programs calculate as it is: random programs, and a program that one of them was made for.

mod generate;
#[path = "../library/mod.rs"]
mod library;
mod random;
mod scalars;
