//! Where values live.
//!
//! | file | question |
//! | --- | --- |
//! | `views.rs`, `join.rs` | which values are parts of others, and need no memory |
//! | `storage.rs` | which values share memory, and which are results of the caller's |
//! | `offsets.rs`, `antichain.rs` | where each is in its arena, and how small that can be |
//! | `constants.rs` | where constants are |
//! | `streaming.rs` | which constants each run copies, where they do not all fit |

mod antichain;
pub mod constants;
pub(super) mod join;
pub mod offsets;
pub(super) mod storage;
pub(super) mod streaming;
pub(super) mod views;
