//! ONNX's node tests as the suite ships them: an archive that `conformance/data/make_onnx_node_tests.py` makes of
//! the onnx package (Apache-2.0, its licence is beside the archive).

use lzma_rust2::XzReader;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use tar::Archive;

static PACKED: &[u8] = include_bytes!("../../data/onnx_node_tests.tar.xz");

/// Entry of a test in the index.
#[derive(Clone, Debug, Deserialize)]
pub struct About {
    /// Allowed difference, as a share of the expected element.
    pub rtol: f64,
    /// Allowed difference, added to it.
    pub atol: f64,
    /// The ops of its nodes, with their domains unless they are ONNX's own.
    pub ops: Vec<String>,
    /// True if it is an op's function body, as a graph of other ops.
    pub expanded: bool,
}

/// One test with its data, as serialised protobufs.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTest {
    pub model: Vec<u8>,
    pub sets: BTreeMap<usize, DataSet>,
}

/// Inputs and expected outputs by their position in the model's lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataSet {
    pub inputs: BTreeMap<usize, Vec<u8>>,
    pub outputs: BTreeMap<usize, Vec<u8>>,
}

/// Returns every test by name, without its data.
pub fn index() -> &'static BTreeMap<String, About> {
    static INDEX: OnceLock<BTreeMap<String, About>> = OnceLock::new();
    INDEX.get_or_init(|| {
        // Nothing but the first entry is unpacked.
        let mut archive = Archive::new(XzReader::new(PACKED, false));
        let mut entries = archive.entries().expect("the archive is part of the program");
        let mut first = entries.next().expect("it has an index").expect("it is whole");
        let mut text = Vec::new();
        first.read_to_end(&mut text).expect("it is whole");
        serde_json::from_slice(&text).expect("its first file is the index")
    })
}

/// Loads the data of these tests.
pub(crate) fn load(wanted: &BTreeSet<&str>) -> BTreeMap<String, NodeTest> {
    let mut tests: BTreeMap<String, NodeTest> = BTreeMap::new();
    let mut archive = Archive::new(XzReader::new(PACKED, false));
    for entry in archive.entries().expect("the archive is part of the program") {
        let mut entry = entry.expect("it is whole");
        let path = entry.path().expect("its names are ASCII").into_owned();
        let Some((name, file)) = split(&path).filter(|(name, _)| wanted.contains(name.as_str())) else {
            continue;
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("it is whole");
        let test = tests.entry(name).or_default();
        match file {
            File::Model => test.model = bytes,
            File::Input(set, i) => drop(test.sets.entry(set).or_default().inputs.insert(i, bytes)),
            File::Output(set, i) => drop(test.sets.entry(set).or_default().outputs.insert(i, bytes)),
        }
    }
    tests
}

enum File {
    Model,
    Input(usize, usize),
    Output(usize, usize),
}

/// `TEST/model.onnx`, `TEST/SET/input_I.pb` or `TEST/SET/output_I.pb`.
fn split(path: &Path) -> Option<(String, File)> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let (name, second) = (parts.next()?, parts.next()?);
    let file = match parts.next() {
        None => File::Model,
        Some(third) => {
            let set = second.parse().ok()?;
            let (kind, i) = third.strip_suffix(".pb")?.split_once('_')?;
            let i = i.parse().ok()?;
            if kind == "input" { File::Input(set, i) } else { File::Output(set, i) }
        }
    };
    Some((name.to_owned(), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_every_test_with_a_model_and_data() {
        let index = index();
        assert_eq!(index.len(), 1884);
        assert_eq!(index.values().filter(|about| about.expanded).count(), 480);
        let tests = load(&index.keys().map(String::as_str).collect());
        assert_eq!(tests.len(), 1884);
        for (name, test) in &tests {
            assert!(!test.model.is_empty() && !test.sets.is_empty(), "{name}");
            for set in test.sets.values() {
                assert!(!set.outputs.is_empty(), "{name}");
                assert!(set.inputs.keys().copied().eq(0..set.inputs.len()), "{name}");
            }
        }
        assert_eq!(load(&["test_add"].into()).len(), 1);
    }
}
