//! Order of work: launches in tasks, tasks on lanes, and where one waits for another.
//!
//! | file | question |
//! | --- | --- |
//! | `tasks.rs` | what a task is, and what waits for it |
//! | `merge.rs` | which launches go together |
//! | `lanes.rs` | which devices and streams a section has, and in which memories its values are |
//! | `streams.rs` | where one lane waits for another |
//! | `borders.rs` | where regions of control flow begin and end |
//! | `flushes.rs` | where a stream that gathers work hands it over |

pub(crate) mod borders;
pub(super) mod flushes;
pub(super) mod lanes;
pub(crate) mod merge;
pub(crate) mod streams;
pub mod tasks;
