//! `gpu-launch`: small launches that reach a GPU in one submission, through the wgpu plugin beside wgpu itself.
//!
//! A chain of `Add`s of 64 elements, each a launch that depends on the one before. The peer dispatches the same shader over
//! the same operands, at the plan's offsets. `N record` is the host's time until N launches are recorded, `N host` until
//! they are submitted; the work's end is awaited but not measured. `N whole` is a run of the session, with its input's copy
//! to the device and its result's copy back, from call to result. `N submissions` is their number in the plugin's own
//! timeline of such a run.

use crate::bare_wgpu::{Bare, Rebinding};
use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::{self, Ran};
use crate::rows::{OURS, Rows};
use crate::setup;
use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_core::device::{Buffer, Device, Stream};
use devbay_core::error::Phase;
use devbay_core::exec::host_io::InputView;
use devbay_core::plan::{Plan, PlanOptions};
use devbay_host::trace::Recorder;
use devbay_host::{Model, Policy, Requirements, RunOptions, Runtime, Session};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_TRANSIENT};
use std::ptr::null;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Elements of every tensor.
pub const N_ELEMENTS: usize = 64;

/// Numbers of launches in a chain.
const LENGTHS: [usize; 3] = [1, 100, 400];

const MOMENT: Duration = Duration::from_millis(30);

/// Duration of a turn whose device work, a hundred times as long here, is not measured.
const HOST_MOMENT: Duration = Duration::from_micros(500);

/// Time limit of a chain.
const LIMIT: Duration = Duration::from_secs(60);

/// The buffers of a chain, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainBuffer {
    /// Input of the chain.
    Input,
    /// Output of the chain.
    Output,
    /// Values between launches.
    Arena,
    /// The second operand of every addition.
    Constants,
}

/// A part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// The buffer.
    pub buffer: ChainBuffer,
    /// Its first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Both operands of an addition, and its result.
pub type Operands = [Operand; 3];

/// Sizes of the plan's own buffers.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Bytes of the values between launches.
    pub arena: u64,
    /// Bytes of constants.
    pub constants: u64,
    /// Offset of the second operand in the constants.
    pub one_offset: u64,
}

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    let cases = LENGTHS.map(|n| ["record", "host", "whole", "submissions"].map(|part| format!("{n} {part}")));
    if !cases.as_flattened().iter().any(|case| rows.want(case)) {
        return Ok(());
    }
    let runtime = setup::runtime_with_library(1, "wgpu")?;
    let device = match choose(&runtime) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu-launch: skipped, as there is no GPU: {error:#}");
            return Ok(());
        }
    };
    eprintln!("gpu-launch: {}, {}", device.about().product, device.about().driver);
    let one = Tensor::from_elements(&[N_ELEMENTS], &[1.0f32; N_ELEMENTS])?;
    for (n, cases) in LENGTHS.into_iter().zip(&cases) {
        let model = Model::from_program(setup::chain_of_adds(n, &one)?);
        let session = Session::with_options(&model, &device, setup::of_launches())?;
        let counted = ran::count(&model, &device, setup::of_launches(), &[("x", &one)])?.launches;
        chain(rows, cases, (n, counted), &session, &one, n_passes)?;
        if rows.want(&cases[3]) {
            let submitted = submissions(&model, n)?;
            let figures = [(OURS.to_owned(), vec![submitted as f64])];
            rows.case("gpu-launch", &cases[3], 1, "", &figures, Ran::launches(n, counted))?;
        }
    }
    Ok(())
}

fn choose(runtime: &Runtime) -> Result<Arc<Device>> {
    Ok(runtime.choose(&Policy::Explicit("wgpu:0".to_owned()), &Requirements::default())?.device)
}

/// Measures one chain of `n` launches, `counted` of which were counted.
fn chain(
    rows: &mut Rows,
    [record, host, whole, _]: &[String; 4],
    (n, counted): (usize, usize),
    session: &Session,
    one: &Tensor,
    n_passes: usize,
) -> Result<()> {
    let input = InputView::of(one);
    let expected: Vec<u8> = bytemuck::bytes_of(&[1.0 + n as f32; N_ELEMENTS]).to_vec();
    let mut launches = Launches::new(&session.plan_for_types(&[input.ty()])?, session.device(), n)?;
    let ones = [1.0f32; N_ELEMENTS];
    let product = &session.device().about().product;
    let open = |state| Bare::open(product, &launches.operands, launches.buffers, &ones, state);
    let (bare, least) = (open(Rebinding::EachTime)?, open(Rebinding::Once)?);

    let mut results = [vec![0u8; expected.len()], vec![0u8; expected.len()], vec![0u8; expected.len()]];
    session.run_into(&[input], &mut [&mut results[0]], &RunOptions::default())?;
    bare.run(one.bytes(), &mut results[1])?;
    least.run(one.bytes(), &mut results[2])?;
    ensure!(results.iter().all(|result| *result == expected), "a chain of {n} gave another sum");

    let per = n as f64;
    let names = ["wgpu", "wgpu, state set once"];
    for (case, with_submission) in [(record, false), (host, true)] {
        if !rows.want(case) {
            continue;
        }
        let bare_round = |bare: &Bare| -> Result<Duration> {
            let begin = Instant::now();
            let recorded = bare.record();
            let recording = begin.elapsed();
            let index = bare.submit(recorded);
            let all = begin.elapsed();
            bare.wait(index)?;
            Ok(if with_submission { all } else { recording })
        };
        let mut subjects = [
            Subject::timed(names[0], per, || bare_round(&bare)),
            Subject::timed(names[1], per, || bare_round(&least)),
            Subject::timed(OURS, per, || launches.round(with_submission)),
        ];
        let figures = passes(&mut subjects, n_passes, HOST_MOMENT)?;
        drop(subjects);
        rows.case("gpu-launch", case, 1, "ns/launch", &figures, Ran::launches(n, counted))?;
    }
    if rows.want(whole) {
        let [ours, theirs, other] = &mut results;
        let mut subjects = [
            Subject::fallible(names[0], per, || bare.run(one.bytes(), theirs)),
            Subject::fallible(names[1], per, || least.run(one.bytes(), other)),
            Subject::fallible(OURS, per, || {
                Ok(session.run_into(&[input], &mut [&mut *ours], &RunOptions::default())?)
            }),
        ];
        let figures = passes(&mut subjects, n_passes, MOMENT)?;
        drop(subjects);
        rows.case("gpu-launch", whole, 1, "ns/launch", &figures, Ran::launches(n, counted))?;
    }
    Ok(())
}

/// A plan's launches on memory of their own, executed as in its runs.
struct Launches {
    // First field, because its drop waits for the work that uses the others.
    stream: Stream,
    refs: Vec<BufferRef>,
    plan: Arc<Plan>,
    #[expect(dead_code, reason = "the references point into them")]
    memory: [Buffer; 3],
    operands: Vec<Operands>,
    buffers: Buffers,
}

impl Launches {
    fn new(plan: &Arc<Plan>, device: &Arc<Device>, n: usize) -> Result<Self> {
        let stage = plan.single().context("a chain is one section")?;
        let section = &stage.section;
        let n_steps = section.steps.len();
        ensure!(n_steps == n, "{n_steps} launches, expected {n}");
        ensure!(section.is_line() && section.context_refs.is_empty(), "a chain is a straight line");
        let bytes = size_of::<f32>() * N_ELEMENTS;
        let arena_bytes = section.memories[0].arena;
        let alloc = |size: usize| device.alloc(size.max(bytes), DEVBAY_USAGE_TRANSIENT);
        let memory = [alloc(bytes)?, alloc(bytes)?, alloc(arena_bytes)?];
        let [input, output, arena] = &memory;
        let mut refs = section.refs.to_vec();
        let mut places = vec![ChainBuffer::Constants; refs.len()];
        let arena_refs = section.arena_refs.iter().map(|own| {
            let blank = &section.refs[own.ref_idx as usize];
            (own.ref_idx, ChainBuffer::Arena, arena.reference(blank.offset as usize, blank.length as usize))
        });
        let patched = |patches: &[devbay_core::plan::section::Patch], buffer: &Buffer, place| {
            let reference = |patch: &devbay_core::plan::section::Patch| {
                let own = buffer.reference(patch.offset as usize, patch.length as usize);
                (patch.ref_idx, place, own)
            };
            patches.iter().map(reference).collect::<Vec<_>>()
        };
        let inputs = patched(&section.input_patches, input, ChainBuffer::Input);
        let outputs = patched(&section.output_patches, output, ChainBuffer::Output);
        for (at, place, reference) in arena_refs.chain(inputs).chain(outputs) {
            (refs[at as usize], places[at as usize]) = (reference, place);
        }
        let operand = |at: usize| {
            let BufferRef { offset, length, .. } = refs[at];
            Operand { buffer: places[at], offset, length }
        };
        let operands: Vec<Operands> = section
            .steps
            .iter()
            .map(|step| [0, 1, 2].map(|i| operand(step.first_ref as usize + i)))
            .collect();
        let ones = operands.iter().flatten().find(|operand| operand.buffer == ChainBuffer::Constants);
        let one = ones.context("an addition has a constant")?;
        let buffers =
            Buffers { arena: arena_bytes as u64, constants: one.offset + one.length, one_offset: one.offset };
        let stream = device.create_stream("bench")?;
        Ok(Self { stream, refs, plan: Arc::clone(plan), memory, operands, buffers })
    }

    /// Returns the time of recording, including the submission on request; the work is done when this returns.
    fn round(&mut self, with_submission: bool) -> Result<Duration> {
        let section = &self.plan.single().context("a chain is one section")?.section;
        let (stream, refs) = (self.stream.handle(), self.refs.as_ptr());
        let begin = Instant::now();
        for step in &section.steps {
            // SAFETY: the step's references begin at `first_ref`, and refer to memory that this struct owns.
            let refs = unsafe { refs.add(step.first_ref as usize) };
            // SAFETY: function, state and references belong together (B21); the stream is of the plan's device, and only
            // this struct uses it.
            let status = unsafe { (step.launch)(step.state, stream, refs, null()) };
            self.stream.check(status, Phase::Launch)?;
        }
        let recording = begin.elapsed();
        let value = self.stream.signal()?;
        let all = begin.elapsed();
        self.stream.wait_reached(value, LIMIT)?;
        Ok(if with_submission { all } else { recording })
    }
}

/// Returns the number of submissions with launches in one run, from the plugin's timeline.
fn submissions(model: &Model, n: usize) -> Result<usize> {
    let recorder = Recorder::default();
    let runtime =
        Runtime::builder().threads(1).plugin(setup::library("wgpu")?).trace(recorder.sink()).build()?;
    let plans = PlanOptions { trace: Some(recorder.clone()), ..setup::of_launches() };
    let session = Session::with_options(model, &choose(&runtime)?, plans)?;
    let one = Tensor::from_elements(&[N_ELEMENTS], &[1.0f32; N_ELEMENTS])?;
    session.run(&[("x", &one)])?;
    // Marks arrive when submissions end, and the last one may end after the run.
    drop((session, runtime));
    let recording = recorder.take();
    let names = recording.marks.iter().map(|(_, mark)| mark.name.as_str());
    let launched =
        names.filter_map(|name| name.strip_prefix("submission of ")?.strip_suffix(" launches")?.parse().ok());
    let launched: Vec<usize> = launched.collect();
    ensure!(launched.iter().sum::<usize>() == n, "submissions of {launched:?} launches, expected {n} in all");
    Ok(launched.len())
}
