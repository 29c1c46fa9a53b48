//! The rules of the ABI from the host's side, with plugins that keep them and plugins that do not.
//!
//! `minimal.c` is a good plugin in C, `defect.c` the same with one defect, `faulty` a plugin in Rust that goes
//! wrong on demand and keeps books about its host; all are in `conformance/fixtures`. Tests of a rule begin with
//! its number, and [`rules`] sees to it that no rule is without. Needs a C compiler: `CC`, else `cc`.

mod discovery;
mod entry;
mod explain;
mod faults;
mod matrix;
mod panics;
mod refusals;
mod rules;
mod selection;
mod shutdown;
mod streams;
mod support;
mod threads;
