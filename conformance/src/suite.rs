//! Contents of the suite: cases and ONNX's node tests, in the order in which they run, and the profiles that they
//! belong to.

use crate::case::{self, Case};
use crate::onnx;
use serde::Serialize;

/// A set of tests that a plugin claims by name in its `profiles`; `base` belongs to every plugin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Loading, negotiation, devices, memory, streams, copies, errors, shutdown.
    Base,
    /// Kernels: their table, `prepare`, launches, numbers, ONNX's node tests.
    Kernels,
    /// Native memory and streams that are wrapped and handed out.
    Interop,
    /// Programs that a device's compiler takes whole.
    Compiler,
}

impl Profile {
    /// Every profile that has tests.
    pub const ALL: [Self; 4] = [Self::Base, Self::Kernels, Self::Interop, Self::Compiler];

    /// Its name, as plugins claim it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Kernels => "kernels",
            Self::Interop => "interop",
            Self::Compiler => "compiler",
        }
    }

    /// Returns the profile of a name; none for one that this suite has no tests for (`graph`).
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }
}

/// One test.
#[derive(Clone, Copy)]
pub enum Item {
    /// A case of our own.
    Case(&'static Case),
    /// A node test of ONNX's, by its name there.
    Node(&'static str),
}

/// Cases that node tests build on.
const NODE_NEEDS: &[&str] = &["kernel.table", "transfer.offsets"];

impl Item {
    /// Its stable name.
    pub fn id(&self) -> String {
        match self {
            Self::Case(case) => case.id.to_owned(),
            Self::Node(name) => format!("{}{name}", onnx::PREFIX),
        }
    }

    /// Returns the rules that it checks.
    pub fn rules(&self) -> &'static [&'static str] {
        match self {
            Self::Case(case) => case.rules,
            Self::Node(_) => onnx::RULES,
        }
    }

    /// Returns the requirement on a plugin.
    pub fn requires(&self) -> String {
        match self {
            Self::Case(case) => case.requires.to_owned(),
            Self::Node(name) => {
                let ops = onnx::index().get(*name).map(|about| about.ops.join(", ")).unwrap_or_default();
                format!("{ops} gives the results that ONNX's test {name} expects")
            }
        }
    }

    /// Tests that have to pass first.
    pub fn needs(&self) -> &'static [&'static str] {
        match self {
            Self::Case(case) => case.needs,
            Self::Node(_) => NODE_NEEDS,
        }
    }

    /// Returns the profile that it belongs to.
    pub fn profile(&self) -> Profile {
        match self {
            Self::Case(case) => match case.topic() {
                "kernel" | "launch" | "numerics" | "specials" => Profile::Kernels,
                "interop" => Profile::Interop,
                "compile" => Profile::Compiler,
                _ => Profile::Base,
            },
            Self::Node(_) => Profile::Kernels,
        }
    }
}

/// Every test, in the order in which they run: what others need comes first, and what looks back on all comes last.
pub fn all() -> impl Iterator<Item = Item> {
    let comes_before = |case: &&Case| case.topic() != "shutdown";
    let nodes = onnx::index().keys().map(|name| Item::Node(name));
    let before = case::all().take_while(comes_before).map(Item::Case);
    before.chain(nodes).chain(case::all().skip_while(comes_before).map(Item::Case))
}

/// Returns whether an id fits a pattern: as [`case::matches`], and `onnx` or `onnx/` with any text that has `*`.
pub fn matches(pattern: &str, id: &str) -> bool {
    let Some(name) = id.strip_prefix(onnx::PREFIX) else {
        return case::matches(pattern, id);
    };
    match pattern.strip_prefix("onnx") {
        Some("" | "/") => true,
        Some(rest) => {
            let rest = rest.strip_prefix('/').unwrap_or(rest);
            rest == name || (rest.contains('*') && case::matches(rest, name))
        }
        None => pattern.contains('*') && case::matches(pattern, id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_a_test_needs_runs_before_it() {
        let mut seen = BTreeSet::new();
        for item in all() {
            for need in item.needs() {
                assert!(seen.contains(*need), "{} needs {need}, which does not run before it", item.id());
            }
            assert!(seen.insert(item.id()), "two tests are called {}", item.id());
        }
        assert!(seen.len() > 1884);
    }

    #[test]
    fn patterns_fit_node_tests() {
        for (pattern, id, fits) in [
            ("onnx", "onnx/test_add", true),
            ("onnx/test_add", "onnx/test_add", true),
            ("onnx/test_add", "onnx/test_add_bcast", false),
            ("onnx/test_add*", "onnx/test_add_bcast", true),
            ("*add*", "onnx/test_add_bcast", true),
            ("transfer", "onnx/test_add", false),
            ("transfer", "transfer.order", true),
            ("onnx", "transfer.order", false),
        ] {
            assert_eq!(matches(pattern, id), fits, "{pattern} on {id}");
        }
    }
}
