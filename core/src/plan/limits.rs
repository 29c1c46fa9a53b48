//! Limits of a model's requests: one beyond them is an error, and is not begun.

use crate::error::{Error, ErrorKind, Result};
use crate::program::verify::REGION_DEPTH_MAX;
use crate::program::{Program, Region};
use crate::units;
use std::time::Duration;

/// Bounds on a model, its plans and its runs. The defaults let everything pass that is of use today.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Nodes of a model, those of nested regions included.
    pub nodes: usize,
    /// Depth to which regions may nest.
    pub nesting: usize,
    /// Bytes that a run of a plan may take on all devices: constants, values, workspaces and results.
    pub bytes: u64,
    /// Number of times that a loop may run its body.
    pub trips: u64,
    /// Time that planning for given inputs may take.
    pub planning: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 4_000_000,
            nesting: REGION_DEPTH_MAX,
            bytes: u64::MAX,
            trips: 1 << 32,
            planning: Duration::from_secs(30 * 60),
        }
    }
}

impl Limits {
    /// The names of the limits, as [`Limits::set`] takes them.
    pub const NAMES: [&str; 5] = ["nodes", "nesting", "bytes", "trips", "planning-time"];

    /// Sets a limit by its name: a number, bytes with a unit or without, or milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown name, and for a value that is not a number.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        let number = || {
            value.parse::<u64>().map_err(|_| invalid(format!("limit {name} is a number, found `{value}`")))
        };
        let count = || number().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        match name {
            "nodes" => self.nodes = count()?,
            "nesting" => self.nesting = count()?,
            "bytes" => {
                let bytes = units::bytes_from(value);
                self.bytes = bytes.ok_or_else(|| {
                    invalid(format!("limit {name} is a number of bytes such as 512M or 2G, found `{value}`"))
                })?;
            }
            "trips" => self.trips = number()?,
            "planning-time" => self.planning = Duration::from_millis(number()?),
            _ => {
                let known = Self::NAMES.join(", ");
                return Err(invalid(format!("there is no limit `{name}`; there are {known}")));
            }
        }
        Ok(())
    }

    /// Refuses a program that is too large.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedModel`], with the number found and the limit's name.
    pub(crate) fn check(&self, program: &Program) -> Result<()> {
        let n = program.n_nodes();
        if n > self.nodes {
            return Err(exceeded(
                "nodes",
                format!("the model has {n} nodes, expected at most {}", self.nodes),
            ));
        }
        let depth = nesting(&program.main);
        if depth > self.nesting {
            let text = format!("regions nest {depth} deep, expected at most {}", self.nesting);
            return Err(exceeded("nesting", text));
        }
        Ok(())
    }

    /// Refuses a plan whose runs take too much memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`], with the requested size and the limit's name.
    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let text = format!("a run takes {bytes} bytes, expected at most {} (limit bytes)", self.bytes);
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }

    /// Returns the error of a loop that goes on for too long.
    pub(crate) fn too_many_trips(trips: u64) -> Error {
        exceeded("trips", format!("a loop wants to run more than {trips} times"))
    }
}

fn exceeded(name: &str, text: String) -> Error {
    Error::new(ErrorKind::UnsupportedModel, format!("{text} (limit {name})"))
}

/// Returns the depth of nesting of a region. A verified program's regions nest within bounds.
fn nesting(region: &Region) -> usize {
    let inner = region.nodes.iter().flat_map(|node| &node.regions);
    inner.map(|(_, region)| 1 + nesting(region)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text::parse;

    #[test]
    fn limits_are_set_by_name() {
        let mut limits = Limits::default();
        let values = ["7", "2", "1K", "9", "250"];
        Limits::NAMES.iter().zip(values).for_each(|(name, value)| limits.set(name, value).unwrap());
        let expected =
            Limits { nodes: 7, nesting: 2, bytes: 1024, trips: 9, planning: Duration::from_millis(250) };
        assert_eq!(limits, expected);
        for (name, value, words) in [
            (
                "nodez",
                "1",
                "there is no limit `nodez`; there are nodes, nesting, bytes, trips, planning-time",
            ),
            ("trips", "many", "limit trips is a number, found `many`"),
            ("bytes", "1 potato", "limit bytes is a number of bytes"),
        ] {
            let error = limits.set(name, value).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidArgument && error.text().contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_too_large_names_its_limit() {
        let text = "devbay-program 1\n\nprogram \"\"(%x: f32[2], %c: bool[]) {\n\
                    \u{20} %a: f32[2] = Neg@13(%x)\n\
                    \u{20} %b: f32[2] = If@25(%c)\n\
                    \u{20}   then_branch() {\n    %d: f32[2] = Neg@13(%a)\n    return %d\n  }\n\
                    \u{20}   else_branch() {\n    return %a\n  }\n\
                    \u{20} return %b\n}\n";
        let program = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let refused = |limits: Limits| limits.check(&program).map_err(|error| error.text().to_owned());
        assert_eq!(refused(Limits { nodes: 3, nesting: 1, ..Limits::default() }), Ok(()));
        let nodes = refused(Limits { nodes: 2, ..Limits::default() });
        assert_eq!(nodes, Err("the model has 3 nodes, expected at most 2 (limit nodes)".to_owned()));
        let nesting = refused(Limits { nesting: 0, ..Limits::default() });
        assert_eq!(nesting, Err("regions nest 1 deep, expected at most 0 (limit nesting)".to_owned()));
        let error = Limits { bytes: 9, ..Limits::default() }.check_bytes(10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
}
