//! Models with data files: sharing of content, and the files that a model may refer to.

use super::*;
use crate::import::{Reading, open};
use std::fs;
use std::path::{Path, PathBuf};

/// A test's own folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("devbay-import-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("model/inside")).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.0.join(name), content).unwrap();
    }

    fn model(&self) -> PathBuf {
        self.0.join("model/m.onnx")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some((*key).to_owned()),
        value: Some((*value).to_owned()),
    };
    TensorProto {
        data_location: Some(1),
        external_data: entries.iter().map(entry).collect(),
        ..tensor(name, DataType::Float, dims)
    }
}

fn of_initializers(tensors: Vec<TensorProto>) -> Vec<u8> {
    let mut graph = graph(vec![], &[]);
    graph.output = tensors.iter().map(|tensor| untyped(tensor.name())).collect();
    graph.initializer = tensors;
    model(17, graph).encode_to_vec()
}

fn numbers(n: u8) -> Vec<u8> {
    (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect()
}

#[test]
fn data_files_are_shared() {
    let folder = Folder::new("shared");
    folder.write("model/w.bin", &numbers(10));
    folder.write("model/inside/v.bin", &numbers(2));
    let tensors = vec![
        external("a", &[2], &[("location", "w.bin"), ("offset", "16"), ("length", "8")]),
        external("b", &[3], &[("location", "w.bin"), ("offset", "28")]),
        external("c", &[2], &[("location", "./inside/v.bin"), ("checksum", "ignored")]),
        external("d", &[0], &[("location", "w.bin"), ("offset", "40"), ("length", "0")]),
    ];
    fs::write(folder.model(), of_initializers(tensors)).unwrap();
    for reading in [Reading::Mapped, Reading::Copied] {
        let program = open(folder.model(), reading).unwrap();
        let constants: Vec<_> =
            program.main.outputs.iter().map(|&id| program.constant(id).unwrap().clone()).collect();
        let values = |i: usize| constants[i].elements::<f32>().unwrap().to_vec();
        assert_eq!(values(0), [4.0, 5.0]);
        assert_eq!(values(1), [7.0, 8.0, 9.0]);
        assert_eq!(values(2), [0.0, 1.0]);
        let address = |i: usize| constants[i].bytes().as_ptr() as usize;
        assert_eq!(address(1) - address(0), 12, "expected views of one mapping");
    }
    // The mapping lives as long as any tensor that views it.
    let program = open(folder.model(), Reading::Mapped).unwrap();
    let tensor = program.constant(program.main.outputs[0]).unwrap().clone();
    drop(program);
    drop(folder);
    assert_eq!(tensor.elements::<f32>().unwrap(), [4.0, 5.0]);
}

#[test]
fn only_files_in_the_models_folder() {
    let folder = Folder::new("inside");
    folder.write("secret.bin", &numbers(2));
    folder.write("model/w.bin", &numbers(2));
    fs::create_dir(folder.0.join("model-other")).unwrap();
    folder.write("model-other/w.bin", &numbers(2));
    let absolute = folder.0.join("secret.bin").display().to_string();
    let mut cases = vec![
        (absolute.clone(), ErrorKind::InvalidModel, "which is absolute or leads upwards"),
        ("../secret.bin".to_owned(), ErrorKind::InvalidModel, "leads upwards; copy the file there"),
        ("inside/../../secret.bin".to_owned(), ErrorKind::InvalidModel, "leads upwards"),
        ("inside/../w.bin".to_owned(), ErrorKind::InvalidModel, "leads upwards"),
        (String::new(), ErrorKind::InvalidModel, "leads upwards"),
        ("w.bin\0".to_owned(), ErrorKind::InvalidModel, "leads upwards"),
        ("missing.bin".to_owned(), ErrorKind::Io, "missing.bin: the initializer \"a\": cannot be found"),
        ("inside".to_owned(), ErrorKind::Io, "cannot be opened: expected a file, found a folder"),
    ];
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(&absolute, folder.0.join("model/link.bin")).unwrap();
        symlink(folder.0.join("model-other"), folder.0.join("model/folder")).unwrap();
        symlink(Path::new("w.bin"), folder.0.join("model/fine.bin")).unwrap();
        cases.push(("link.bin".to_owned(), ErrorKind::InvalidModel, "a link that leads out of it"));
        cases.push(("folder/w.bin".to_owned(), ErrorKind::InvalidModel, "a link that leads out of it"));
        cases.push(("/dev/zero".to_owned(), ErrorKind::InvalidModel, "which is absolute"));
        let fine = external("a", &[2], &[("location", "fine.bin")]);
        fs::write(folder.model(), of_initializers(vec![fine])).unwrap();
        open(folder.model(), Reading::Mapped).unwrap();
    }
    for (location, kind, expected) in cases {
        let tensor = external("a", &[2], &[("location", &location)]);
        fs::write(folder.model(), of_initializers(vec![tensor])).unwrap();
        let error = open(folder.model(), Reading::Mapped).expect_err(&location);
        assert_eq!(error.kind(), kind, "{location}: {error:?}");
        assert!(error.to_string().contains(expected), "{location}: {error}");
    }
}

#[test]
fn data_that_is_not_there() {
    let folder = Folder::new("ranges");
    folder.write("model/w.bin", &numbers(3));
    folder.write("model/empty.bin", &[]);
    let max = usize::MAX.to_string();
    let cases: Vec<(Vec<(&str, &str)>, &str)> = vec![
        (vec![], "expected one location of external data"),
        (vec![("location", "w.bin"), ("location", "w.bin")], "expected one location"),
        (
            vec![("location", "w.bin"), ("offset", "-4")],
            "expected a number as the offset of external data, found \"-4\"",
        ),
        (
            vec![("location", "w.bin"), ("offset", "4"), ("offset", "0")],
            "expected one offset of external data",
        ),
        (
            vec![("location", "w.bin"), ("offset", "8"), ("length", "8")],
            "expected 8 bytes from byte 8 of \"w.bin\", found a file of 12 bytes",
        ),
        (vec![("location", "w.bin"), ("offset", "13")], "expected to the end from byte 13"),
        (vec![("location", "w.bin"), ("offset", &max), ("length", &max)], "found a file of 12 bytes"),
        (vec![("location", "w.bin"), ("length", "4")], "expected 8 bytes for a tensor f32[2], found 4"),
        (vec![("location", "w.bin")], "expected 8 bytes for a tensor f32[2], found 12"),
        (vec![("location", "empty.bin")], "expected 8 bytes for a tensor f32[2], found 0"),
    ];
    for (entries, expected) in cases {
        fs::write(folder.model(), of_initializers(vec![external("a", &[2], &entries)])).unwrap();
        let error = open(folder.model(), Reading::Mapped).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\n expected {expected}");
        assert!(error.contains("m.onnx: the initializer \"a\": "), "{error}");
    }
    let also_raw = TensorProto {
        raw_data: Some(vec![0; 8].into()),
        float_data: vec![0.0],
        ..external("a", &[2], &[("location", "w.bin")])
    };
    fs::write(folder.model(), of_initializers(vec![also_raw])).unwrap();
    assert!(open(folder.model(), Reading::Mapped).is_err());
}

#[test]
fn a_small_file_does_not_become_a_lot_of_memory() {
    let folder = Folder::new("overlap");
    folder.write("model/w.bin", &vec![0; 4001]);
    // These are unaligned, so each would be copied; aligned ones may overlap, as tied weights do.
    let at = |offset: usize, n: usize| -> Vec<TensorProto> {
        (0..n)
            .map(|i| {
                external(
                    &format!("t{i}"),
                    &[1000],
                    &[("location", "w.bin"), ("offset", &offset.to_string()), ("length", "4000")],
                )
            })
            .collect()
    };
    fs::write(folder.model(), of_initializers(at(0, 50))).unwrap();
    open(folder.model(), Reading::Mapped).unwrap();
    fs::write(folder.model(), of_initializers(at(1, 1))).unwrap();
    open(folder.model(), Reading::Mapped).unwrap();
    fs::write(folder.model(), of_initializers(at(1, 50))).unwrap();
    let error = open(folder.model(), Reading::Mapped).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedModel);
    assert!(error.to_string().contains("expected external tensors that do not overlap"), "{error}");
}

#[test]
fn bytes_without_a_folder() {
    let bytes = of_initializers(vec![external("a", &[2], &[("location", "w.bin")])]);
    let error = from_bytes(bytes, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedModel);
    assert!(error.to_string().contains("the folder is not known; open it by its path"), "{error}");
    let error = open("/nonexistent/m.onnx", Reading::Mapped).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().starts_with("/nonexistent/m.onnx: "), "{error}");
}
