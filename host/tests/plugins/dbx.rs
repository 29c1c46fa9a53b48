//! Compiled models: they give what the model gives, on whatever device, and what is no such file, or is a damaged or
//! forged one, is an error and never more.

use crate::library::library;
use devbay_host::internals::core::plan::constants::PackCounts;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::F32;
use devbay_host::{
    Checks, Error, ErrorKind, Model, Result, RunOptions, Runtime, Session, SessionOptions, Tensor, TensorType,
};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant, SystemTime};

/// Two products with weights, shape arithmetic that is folded, and a loop.
fn model() -> Model {
    const N: usize = 24;
    let weight = |seed: usize| {
        let elements: Vec<String> = (0..N * N).map(|i| format!("{}.0", (i * 7 + seed) % 5)).collect();
        format!("const f32[{N},{N}] [{}]", elements.join(", "))
    };
    let source = format!(
        r#"devbay-program 1

program "m"(%x: f32[batch,{N}]) {{
  %shape: i64[2] = Shape@25(%x)
  %zero = const i64[1] [0]
  %rows: i64[1] = Gather@13(%shape, %zero)
  %minus = const i64[1] [-1]
  %flat: i64[2] = Concat@13(%rows, %minus) {{axis = 0}}
  %a = {}
  %p = MatMul@13(%x, %a)
  %q = Relu@14(%p)
  %b = {}
  %r = MatMul@13(%q, %b)
  %s = Reshape@25(%r, %flat)
  %trips = const i64[] [3]
  %go = const bool[] [true]
  %y = Loop@25(%trips, %go, %s) body(%i: i64[], %c: bool[], %v) {{
    %half = Sqrt@13(%v)
    %w = Add@14(%half, %s)
    return %c, %w
  }}
  %z = Relu@14(%y)
  return %z
}}
"#,
        weight(1),
        weight(2)
    );
    Model::from_program(text::parse(&source).expect("a program"))
}

fn runtime(plugins: &[&str]) -> Runtime {
    let option = |key: &str, value: &str| ("cpu".to_owned(), key.to_owned(), value.to_owned());
    Runtime::builder()
        .threads(1)
        .plugins(plugins.iter().map(|name| library(name)))
        .options([option("streams", "inline,async")])
        .build()
        .expect("a runtime")
}

fn input(rows: usize) -> Tensor {
    let elements: Vec<f32> = (0..rows * 24).map(|i| (i % 11) as f32).collect();
    Tensor::from_elements(&[rows, 24], &elements).expect("an input")
}

fn run(session: &Session, rows: usize) -> Vec<u8> {
    let outputs = session.run(&[("x", &input(rows))]).expect("a run");
    outputs[0].bytes().to_vec()
}

/// The content of a file that a session with plans for these numbers of rows writes.
fn compiled(session: &Session, rows: &[usize]) -> Vec<u8> {
    for &rows in rows {
        session.plan_for_types(&[(F32, &[rows, 24])]).expect("a plan");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.dbx");
    let written = session.compile_to(&path).expect("a file");
    let content = std::fs::read(&path).expect("a file");
    assert_eq!((written.n_plans, written.bytes), (rows.len(), content.len()));
    content
}

fn load(content: &[u8]) -> Result<Model> {
    Model::from_compiled(content.to_vec(), Checks::Weights)
}

#[test]
fn what_was_compiled_gives_the_same() {
    let runtime = runtime(&["cpu"]);
    for device in runtime.devices() {
        let source = model();
        let session = Session::new(&source, &device).unwrap();
        let content = compiled(&session, &[2, 5]);
        let packed = session.pack_counts();
        assert!(packed.now > 0 && packed.ahead == 0, "{packed:?}");

        let model = load(&content).unwrap();
        let of_rows = |rows: usize| vec![TensorType::new(F32, &[rows, 24])];
        assert_eq!(model.compiled_for(), Some(vec![of_rows(2), of_rows(5)]));
        let again = Session::new(&model, &device).unwrap();
        // Types of other inputs are found when they come.
        for rows in [2, 5, 3] {
            assert_eq!(run(&again, rows), run(&session, rows), "{rows} rows on {}", device.name());
        }
        assert_eq!(again.pack_counts(), PackCounts { ahead: packed.now, now: 0 }, "{}", device.name());
    }
}

#[test]
fn a_file_suits_other_devices_passes_and_pins() {
    let runtime = runtime(&["cpu", "wgpu"]);
    let [inline, wgpu] = ["cpu:0", "wgpu:0"].map(|name| {
        let found = runtime.devices().into_iter().find(|device| device.name() == name);
        found.unwrap_or_else(|| panic!("{name} is not here"))
    });
    let (inline, wgpu) = (&inline, &wgpu);
    let source = model();
    let content = compiled(&Session::new(&source, inline).unwrap(), &[2]);
    let expected = run(&Session::new(&source, inline).unwrap(), 2);
    let model = load(&content).unwrap();

    let mut options = SessionOptions { others: vec![inline.clone()], ..SessionOptions::default() };
    let elsewhere = Session::with_options(&model, wgpu, options.clone()).unwrap();
    let outputs = elsewhere.run(&[("x", &input(2))]).unwrap();
    let (found, wanted) =
        (outputs[0].elements::<f32>().unwrap(), bytemuck::pod_collect_to_vec::<_, f32>(&expected));
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() <= 1e-4 * wanted.abs(), "{found} and {wanted}");
    }
    options = SessionOptions::default();
    options.plans.passes = devbay_host::internals::core::passes::Switches::none();
    assert_eq!(run(&Session::with_options(&model, inline, options).unwrap(), 2), expected);
}

/// Loads it, and runs what was loaded; a run ends in any case.
fn try_it(runtime: &Runtime, content: &[u8]) -> Result<Vec<Tensor>> {
    let model = Model::from_compiled(content.to_vec(), Checks::Head)?;
    let session = Session::new(&model, &runtime.devices()[0])?;
    let options = RunOptions { deadline: Some(Duration::from_millis(500)), ..RunOptions::default() };
    let (input, inputs) = (input(2), session.inputs());
    let named: Vec<(&str, &Tensor)> = inputs.iter().map(|port| (&*port.name, &input)).collect();
    session.run_with(&named, &options)
}

fn small_file(runtime: &Runtime) -> Vec<u8> {
    let source = model();
    compiled(&Session::new(&source, &runtime.devices()[0]).unwrap(), &[2])
}

/// Where what the checksum covers ends, and the file with it put right.
fn covered(content: &[u8]) -> usize {
    u64::from_le_bytes(content[24..32].try_into().unwrap()) as usize
}

fn put_right(content: &mut [u8]) {
    let covered = covered(content).min(content.len());
    content[32..64].fill(0);
    let sum = Sha256::digest(&content[..covered]);
    content[32..64].copy_from_slice(&sum);
}

fn expect_damaged(error: &Error, what: impl std::fmt::Display) {
    assert_eq!(error.kind(), ErrorKind::InvalidModel, "{what}: {error}");
}

#[test]
fn every_flipped_byte_is_found() {
    let runtime = runtime(&["cpu"]);
    let content = small_file(&runtime);
    let covered = covered(&content);
    // Behind the checksummed bytes are zeroes up to the weights, which are not read.
    let weights_at = covered.next_multiple_of(4096);
    for at in (0..covered).chain(weights_at..content.len()) {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = content.clone();
            changed[at] ^= flip;
            match load(&changed) {
                Err(error) => expect_damaged(&error, format!("byte {at} by {flip:#x}")),
                // Weights begin at multiples; between them is nothing.
                Ok(_) => assert!(at >= weights_at && content[at] == 0, "byte {at} by {flip:#x}"),
            }
        }
    }
}

#[test]
fn forged_bytes_are_an_error_or_another_model() {
    let runtime = runtime(&["cpu"]);
    let content = small_file(&runtime);
    let (mut refused, mut ran) = (0, 0);
    for at in (8..32).chain(64..covered(&content)) {
        for flip in [0x01, 0x80] {
            let mut changed = content.clone();
            changed[at] ^= flip;
            put_right(&mut changed);
            match try_it(&runtime, &changed) {
                Ok(_) => ran += 1,
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Internal, "byte {at} by {flip:#x}: {error}");
                    refused += 1;
                }
            }
        }
    }
    // Names and weights may be other ones; most of the rest may not.
    assert!(refused > 100 && ran > 100, "{refused} refused, {ran} ran");
}

#[test]
fn cut_files_are_refused() {
    let runtime = runtime(&["cpu"]);
    let content = small_file(&runtime);
    for length in 0..content.len() {
        let error = load(&content[..length]).err().unwrap_or_else(|| panic!("{length} bytes of a file load"));
        expect_damaged(&error, length);
        // With a length that is right, too.
        if length >= 64 {
            let mut cut = content[..length].to_vec();
            cut[16..24].copy_from_slice(&(length as u64).to_le_bytes());
            put_right(&mut cut);
            expect_damaged(&load(&cut).err().unwrap_or_else(|| panic!("{length} bytes load")), length);
        }
    }
}

#[test]
fn forged_offsets_are_refused() {
    let runtime = runtime(&["cpu"]);
    let content = small_file(&runtime);
    let end = content.len() as u64;
    // The number of sections, the length, the end of the checksummed part; each section's offset and length.
    let fields = [(12, 4), (16, 8), (24, 8), (72, 8), (80, 8), (96, 8), (104, 8)];
    for (at, size) in fields {
        for value in [0, 1, 63, end - 1, end + 1, u64::MAX / 2, u64::MAX - 4095, u64::MAX] {
            let mut forged = content.clone();
            forged[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
            if forged == content {
                continue;
            }
            put_right(&mut forged);
            match load(&forged) {
                Err(error) => expect_damaged(&error, format!("{value} at {at}")),
                // A checksum may cover more than it must.
                Ok(_) => assert!(at == 24 && value >= covered(&content) as u64, "{value} at {at} loads"),
            }
        }
    }
}

/// Mutants of an ordinary test run.
const MUTANTS: u32 = 2_000;

/// Changes a few things in the head, of the kinds that find faults: bits, bytes of numbers, parts that go, come twice or change
/// places. The file is put right behind it, so that the change is read.
fn mutate(content: &[u8], random: &mut Random) -> Vec<u8> {
    let (head_at, covered) = (112, covered(content));
    let mut head = content[head_at..covered].to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(head.len());
        let length = random.below(16.min(head.len() - at)) + 1;
        match random.below(6) {
            0 => head[at] ^= 1 << random.below(8),
            1 => head[at] = [0, 1, 2, 0x7f, 0x80, 0xff][random.below(6)],
            2 => drop(head.drain(at..at + length)),
            3 => {
                let part = head[at..at + length].to_vec();
                let to = random.below(head.len());
                drop(head.splice(to..to, part));
            }
            4 => {
                let to = random.below(head.len() - length + 1);
                head.copy_within(at..at + length, to);
            }
            _ => head[at..at + length].fill(random.below(256) as u8),
        }
        if head.is_empty() {
            head.push(0);
        }
    }
    let mut mutant = content[..head_at].to_vec();
    mutant.extend_from_slice(&head);
    let covered = mutant.len();
    mutant.resize(covered.next_multiple_of(4096), 0);
    let weights_at = mutant.len();
    mutant.extend_from_slice(&content[self::covered(content).next_multiple_of(4096)..]);
    let length = mutant.len();
    for (at, value) in
        [(16, length), (24, covered), (80, covered - head_at), (96, weights_at), (104, length - weights_at)]
    {
        mutant[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    put_right(&mut mutant);
    mutant
}

/// Xorshift (Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// `DEVBAY_FUZZ_SECONDS` says how long, in the place of so many mutants; each starts at another number.
#[test]
fn mutants_are_an_error_or_another_model() {
    let runtime = runtime(&["cpu"]);
    let content = small_file(&runtime);
    let seconds: Option<u64> = std::env::var("DEVBAY_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    if seconds.is_some() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
        random.0 ^= now.as_nanos() as u64;
    }
    let (begin, mut n, mut ran) = (Instant::now(), 0u32, 0u32);
    while seconds.map_or(n < MUTANTS, |seconds| begin.elapsed().as_secs() < seconds) {
        let state = random.0;
        match try_it(&runtime, &mutate(&content, &mut random)) {
            Ok(_) => ran += 1,
            Err(error) => assert_ne!(error.kind(), ErrorKind::Internal, "from {state:#x}: {error}"),
        }
        n += 1;
    }
    // A time is only useful with what it was measured on.
    if seconds.is_some() {
        eprintln!("{n} mutants, of which {ran} ran");
    }
    assert!(ran > 0, "no mutant of {n} is a model: nothing behind the head was tried");
}
