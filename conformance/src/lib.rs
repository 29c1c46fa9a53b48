//! The proof: what it means to be a devbay plugin.
//!
//! A plugin goes in, as a file or linked, and a [`report::Report`] comes out: for each [`case::Case`] whether the
//! plugin does what the rule says, how it does not, or why the question does not arise. A case speaks to the
//! plugin's own table, so that nothing of the host's covers up what is wrong; each runs in a process of its own
//! ([`judge::Child`]), so that a plugin that aborts or hangs costs one case.
//!
//! What is left out on purpose: speed is not judged here, and no plugin is told how to be fast.
//!
//! ```no_run
//! use devbay_conformance::judge::{Settings, Subject, judge};
//!
//! let subject = Subject::Library("libdevbay_plugin_mine.so".into());
//! let report = judge(&subject, &Settings::default(), &mut |test| eprintln!("{}", test.id));
//! assert_eq!(report.summary().failed, 0);
//! ```

pub mod case;
mod cases;
mod desk;
pub mod judge;
mod node;
mod ops;
pub mod report;
mod rig;
mod tensor;
pub mod verdict;
