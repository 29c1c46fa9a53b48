//! Passes over programs: one pass, one file.

pub mod dead_code;
