//! The proof: what it means to be a devbay plugin.
//!
//! A plugin goes in, as a file or linked, and a [`report::Report`] comes out: for each test of the [`suite`] whether
//! the plugin does what the rule says, how it does not, or why it was not asked. A [`case::Case`] speaks to the
//! plugin's own table, so that nothing of the host's covers up what is wrong; [`onnx`]'s node tests go to its own
//! kernels. Each runs in a process of its own ([`child`]), so that a plugin that aborts or hangs costs one test.
//!
//! Left out on purpose: speed is not judged here, and no plugin is told how to be fast.
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
pub mod child;
mod desk;
mod functions;
#[cfg(doctest)]
mod guide;
pub mod hostile;
pub mod judge;
pub mod lint;
mod measure;
mod node;
mod numbers;
pub mod onnx;
mod ops;
pub mod report;
mod rig;
mod subject;
pub mod suite;
mod tensor;
pub mod verdict;
