//! Control flow of known types: planning of the regions of If, Loop and Scan.
//!
//! | file | the regions become |
//! | --- | --- |
//! | `nested.rs` | a step that runs them with the launch loop |
//! | `unroll.rs` | launches, iteration by iteration |
//! | `regions.rs` | tasks between an entry and an exit |
//! | `extract.rs` | programs of their own |

pub mod extract;
pub mod nested;
pub mod regions;
pub mod unroll;
