//! Passes leave what programs calculate as it is: random programs, a program that one of them was
//! made for, and every fusion by what is no ordinary number.

mod generate;
mod random;
mod scalars;
mod specials;
