//! The face of devbay: it finds plugins and models and introduces them to each other.

pub mod import;
