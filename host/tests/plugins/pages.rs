//! Pages of mapped model files: those of constants that were packed, folded or uploaded are given back, those of constants that
//! kernels read in place stay, and results do not depend on it.

use crate::library::library;
use devbay_host::{Model, Runtime, Session, Tensor};
use std::fs;
use std::path::{Path, PathBuf};

/// Extents of a product's weights, which are packed.
const WEIGHTS: [usize; 2] = [512, 1024];
/// Extents of a term, which is read in place.
const TERM: [usize; 3] = [256, 1, 1024];

const WEIGHTS_KIB: usize = WEIGHTS[0] * WEIGHTS[1] * 4 / 1024;
const TERM_KIB: usize = TERM[0] * TERM[2] * 4 / 1024;
/// Pages at the edges of constants, and those that the system maps around one that is read.
const SLACK_KIB: usize = 256;

/// A message of protobuf as it grows.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut n: u64) -> Self {
        while n > 127 {
            self.0.push(n as u8 | 128);
            n >>= 7;
        }
        self.0.push(n as u8);
        self
    }

    fn number(self, field: u64, n: u64) -> Self {
        self.varint(field << 3).varint(n)
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut message = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        message.0.extend(bytes);
        message
    }

    fn with(self, field: u64, message: Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// Where a model's content is.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Within,
    Beside,
}

/// Small whole numbers, of which no sum is rounded. The first is in no other tensor.
fn elements(n: usize, seed: usize) -> Vec<f32> {
    let element = |i: usize| if i == 0 { 100 + seed } else { (i * 7 + i / 5 + seed) % 5 };
    (0..n).map(|i| element(i) as f32 - 2.0).collect()
}

/// Returns a model `y = x w + t` with `x: [1, n, 512]`, and the content of its data file. Texts of some bytes before the weights and the
/// term move these within the model.
fn written(stored: Stored, texts: [usize; 2]) -> (Vec<u8>, Vec<u8>) {
    let mut content = Vec::new();
    let mut tensor = |name: &str, extents: &[usize], seed: usize| {
        let bytes = bytemuck::cast_slice(&elements(extents.iter().product(), seed)).to_vec();
        let message = extents.iter().fold(Message::default(), |message, &n| message.number(1, n as u64));
        let message = message.number(2, 1).bytes(8, name.as_bytes()).bytes(12, &vec![b' '; texts[seed - 1]]);
        let Stored::Beside = stored else { return message.bytes(9, &bytes) };
        let entry =
            |key: &str, value: &str| Message::default().bytes(1, key.as_bytes()).bytes(2, value.as_bytes());
        let (offset, length) = (content.len().to_string(), bytes.len().to_string());
        content.extend(bytes);
        let entries = [("location", "data.bin"), ("offset", &*offset), ("length", &*length)];
        let message = message.number(14, 1);
        entries.into_iter().fold(message, |message, (key, value)| message.with(13, entry(key, value)))
    };
    let node = |op: &str, inputs: [&str; 2], output: &str| {
        let message =
            inputs.iter().fold(Message::default(), |message, name| message.bytes(1, name.as_bytes()));
        message.bytes(2, output.as_bytes()).bytes(4, op.as_bytes())
    };
    let dim = |n: u64| Message::default().number(1, n);
    let value = |name: &str, dims: [Message; 3]| {
        let shape = dims.into_iter().fold(Message::default(), |shape, dim| shape.with(1, dim));
        let ty = Message::default().with(1, Message::default().number(1, 1).with(2, shape));
        Message::default().bytes(1, name.as_bytes()).with(2, ty)
    };
    let open = || Message::default().bytes(2, b"n");
    let graph = Message::default()
        .with(1, node("MatMul", ["x", "w"], "p"))
        .with(1, node("Add", ["p", "t"], "y"))
        .bytes(2, b"g")
        .with(5, tensor("w", &WEIGHTS, 1))
        .with(5, tensor("t", &TERM, 2))
        .with(11, value("x", [dim(1), open(), dim(512)]))
        .with(12, value("y", [dim(256), open(), dim(1024)]));
    let opset = Message::default().number(2, 20);
    (Message::default().number(1, 9).with(8, opset).with(7, graph).0, content)
}

/// Writes the model, and gives its file and that of its content.
fn write(folder: &Path, stored: Stored) -> (PathBuf, PathBuf) {
    let (model, data) = (folder.join("model.onnx"), folder.join("data.bin"));
    // Numbers that are not aligned within a model would be copied.
    let is_aligned = |model: &[u8], seed: usize| {
        let first = elements(1, seed)[0].to_le_bytes();
        model.windows(4).position(|bytes| bytes == first).is_none_or(|at| at % 4 == 0)
    };
    let mut aligned = (0..16).map(|i| written(stored, [i % 4, i / 4]));
    let found = aligned.find(|(model, _)| is_aligned(model, 1) && is_aligned(model, 2));
    let (bytes, content) = found.expect("texts that align the numbers");
    fs::write(&model, bytes).expect("a model's file");
    fs::write(&data, content).expect("a data file");
    match stored {
        Stored::Within => (model.clone(), model),
        Stored::Beside => (model, data),
    }
}

fn runtime() -> Runtime {
    let option = ("cpu".to_owned(), "streams".to_owned(), "inline,async".to_owned());
    Runtime::builder().threads(2).plugin(library("cpu")).options([option]).build().expect("a runtime")
}

/// Returns the KiB of a file that are in this process's memory.
fn resident(path: &Path) -> usize {
    let path = path.canonicalize().expect("a file");
    let maps = fs::read_to_string("/proc/self/smaps").expect("the memory of this process");
    let mut is_of_file = false;
    let mut sum = 0;
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let kib = size.trim().trim_end_matches(" kB").parse::<usize>().expect("a size in KiB");
            sum += if is_of_file { kib } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            is_of_file = line.ends_with(path.to_str().expect("a path of letters"));
        }
    }
    sum
}

/// Runs on `n` rows and checks the results.
fn check(session: &Session, n: usize) {
    let x = elements(n * WEIGHTS[0], 3);
    let (w, t) = (elements(WEIGHTS[0] * WEIGHTS[1], 1), elements(TERM[0] * TERM[2], 2));
    let input = Tensor::from_elements(&[1, n, WEIGHTS[0]], &x).expect("an input");
    let found = session.run(&[("x", &input)]).expect("a run");
    let found = found[0].elements::<f32>().expect("numbers");
    let column = |row: usize, column: usize| -> f32 {
        (0..WEIGHTS[0]).map(|k| x[row * WEIGHTS[0] + k] * w[k * WEIGHTS[1] + column]).sum()
    };
    let product: Vec<f32> = (0..n * WEIGHTS[1]).map(|i| column(i / WEIGHTS[1], i % WEIGHTS[1])).collect();
    for (i, &found) in found.iter().enumerate() {
        let (term, at) = (i / product.len(), i % product.len());
        assert_eq!(found, product[at] + t[term * TERM[2] + at % TERM[2]], "result {i} of {n} rows");
    }
    assert_eq!(found.len(), TERM[0] * product.len());
}

#[track_caller]
fn expect(path: &Path, kib: std::ops::RangeInclusive<usize>) {
    let found = resident(path);
    assert!(kib.contains(&found), "expected {kib:?} KiB of the file in memory, found {found}");
}

fn pages_stay_where_they_are_read(stored: Stored) {
    let folder = std::env::temp_dir().join(format!("devbay-pages-{}-{stored:?}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (path, data) = write(&folder, stored);
    let runtime = runtime();
    let devices = runtime.devices();
    let model = Model::load(&path).expect("a model");
    let session = Session::new(&model, &devices[0]).expect("a session");
    check(&session, 4);
    let in_place = TERM_KIB..=TERM_KIB + SLACK_KIB;
    expect(&data, in_place.clone());
    // Another plan reads the same, and packs nothing anew.
    check(&session, 5);
    expect(&data, in_place);

    // A device with a memory of its own reads nothing in place.
    let other = Session::new(&model, &devices[1]).expect("a session with another device");
    check(&other, 4);
    expect(&data, 0..=TERM_KIB + SLACK_KIB);
    check(&session, 4);

    let compiled = folder.join("model.dbx");
    session.compile_to(&compiled).expect("a compiled model");
    drop((session, other, model));
    expect(&data, 0..=0);
    let model = Model::load(&compiled).expect("a compiled model");
    let session = Session::new(&model, &devices[0]).expect("a session of a compiled model");
    check(&session, 4);
    // The packed weights are read in place, the others not at all.
    expect(&compiled, WEIGHTS_KIB + TERM_KIB..=WEIGHTS_KIB + TERM_KIB + SLACK_KIB);
    let other = Session::new(&model, &devices[1]).expect("another session of a compiled model");
    check(&other, 4);
    check(&session, 4);
    fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn pages_of_a_model_file_stay_where_they_are_read() {
    pages_stay_where_they_are_read(Stored::Within);
}

#[test]
fn pages_of_a_data_file_stay_where_they_are_read() {
    pages_stay_where_they_are_read(Stored::Beside);
}
