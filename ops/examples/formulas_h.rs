//! Prints the header of formulas for plugins in C: `plugins/opencl/src/formulas.h`.
#![expect(clippy::print_stdout, reason = "what it prints is the header")]

fn main() {
    print!("{}", devbay_ops::opencl::header());
}
