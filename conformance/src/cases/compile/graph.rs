//! Graphs: that what is claimed compiles, and gives what it has to (B23).

use super::claims::{ask, claimed, units, with_unclaimed};
use super::model::{F32, Graph, bytes, numbers};
use super::{Program, alloc, make, table};
use crate::case::Case;
use crate::rig::{Buffer, Detail, Device, Rig, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "compile.graph",
        rules: &["B23"],
        requires: "any set of claimed nodes compiles: each alone, all but one, and all",
        needs: &["compile.claims.company"],
        run: promise,
    },
    Case {
        id: "compile.graph.info",
        rules: &["B23"],
        requires: "a graph's program takes only the graph's inputs and constants, each once, and returns the \
                   graph's types",
        needs: &["compile.graph"],
        run: info,
    },
    Case {
        id: "compile.graph.run",
        rules: &["B9", "B12", "B23"],
        requires: "a graph's program gives the graph's results, also in a second run, and leaves its inputs unchanged",
        needs: &["compile.graph.info", "transfer.round_trip"],
        run,
    },
    Case {
        id: "compile.graph.donated",
        rules: &["B23"],
        requires: "a run with donated inputs gives the graph's results, and so do later runs",
        needs: &["compile.graph.run"],
        run: donated,
    },
    Case {
        id: "compile.graph.outputs",
        rules: &["B9", "B23"],
        requires: "a program that accepts memory for its results writes them there and allocates none; without \
                   that memory, it allocates all",
        needs: &["compile.graph.run"],
        run: outputs,
    },
    Case {
        id: "compile.graph.streams",
        rules: &["B17", "B23"],
        requires: "one program can run on two streams at once, each with its own results",
        needs: &["compile.graph.run"],
        run: streams,
    },
    Case {
        id: "compile.graph.unclaimed",
        rules: &["B18", "B23"],
        requires: "a graph with an unclaimed node is refused with UNSUPPORTED and a message, and gives no program",
        needs: &["compile.claims"],
        run: unclaimed,
    },
];

/// Compiles a graph, some of whose inputs will be donated.
fn compile(device: &Device<'_>, graph: &Graph, donors: &[u32]) -> Outcome<(Status, Program, Detail)> {
    let table = table(device)?;
    graph.with_abi(|view| {
        let desc = CompileDesc {
            graph: view,
            numerics: DEVBAY_NUMERICS_STRICT,
            donors: List::new(donors),
            ..CompileDesc::empty()
        };
        make(&table, device, table.compile, desc)
    })
}

/// A program of a graph of claimed nodes.
pub(super) fn compiled(device: &Device<'_>, graph: &Graph, donors: &[u32]) -> Outcome<Program> {
    let (status, program, detail) = compile(device, graph, donors)?;
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op).collect();
    let ops = ops.join(", ");
    ensure!(status == DEVBAY_STATUS_OK, "compiling {ops}, all claimed, returned {}", detail.describe(status));
    ensure!(!program.handle.is_null(), "compiling {ops} succeeded without a program");
    Ok(program)
}

/// A program's description of itself.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Info {
    pub takes: Vec<u32>,
    outputs: Vec<(DType, Vec<i64>)>,
    takes_outputs: bool,
}

impl Info {
    pub fn of(program: &Program) -> Outcome<Self> {
        let Some(ask) = program.table.executable_info else {
            return failed("the compiler extension has no executable_info");
        };
        let (mut info, mut detail) = (ExecutableInfo::empty(), Detail::new());
        // SAFETY: the plugin's function with its own program; the struct is ours.
        let status = unsafe { ask(program.handle, &mut info, &mut detail.raw) };
        ensure!(status == DEVBAY_STATUS_OK, "executable_info returned {}", detail.describe(status));
        // SAFETY: the plugin keeps the list as long as the program, which is alive.
        let takes = match unsafe { read_list::<u32>(&info.inputs, "uint32_t") } {
            Ok(takes) => takes,
            Err(error) => return failed(format!("invalid list of a program's inputs: {error}")),
        };
        // SAFETY: the plugin keeps this list as long as the program, too.
        let tensors = match unsafe { read_growable_list::<Tensor>(&info.outputs) } {
            Ok(tensors) => tensors,
            Err(error) => return failed(format!("invalid list of results: {error}")),
        };
        let mut outputs = Vec::new();
        for tensor in tensors {
            let rank = tensor.rank as usize;
            ensure!(rank == 0 || !tensor.shape.is_null(), "a result of rank {rank} without extents");
            let shape = match rank {
                0 => &[],
                // SAFETY: so many extents, kept as the list is.
                rank => unsafe { std::slice::from_raw_parts(tensor.shape, rank) },
            };
            outputs.push((tensor.dtype, shape.to_vec()));
        }
        let takes_outputs = info.flags & DEVBAY_EXECUTABLE_TAKES_OUTPUTS != 0;
        Ok(Self { takes, outputs, takes_outputs })
    }

    /// Refuses what does not fit the graph.
    fn check(&self, graph: &Graph) -> Outcome {
        for (position, &value) in self.takes.iter().enumerate() {
            ensure!(
                graph.is_given(value),
                "the program takes value {value} of {}, which is neither an input nor a constant of its graph",
                graph.values.len()
            );
            ensure!(!self.takes[..position].contains(&value), "the program takes value {value} twice");
        }
        let expected: Vec<_> =
            graph.outputs.iter().map(|&value| (F32, graph.values[value as usize].shape.clone())).collect();
        ensure!(
            self.outputs == expected,
            "the program's results are {:?}, expected {expected:?} (code, bits and lanes, and extents)",
            self.outputs
        );
        Ok(())
    }
}

/// Writes the program's operands to buffers.
pub(super) fn operands<'a>(
    device: &'a Device<'a>,
    graph: &Graph,
    info: &Info,
    all: &[Vec<f32>],
) -> Outcome<Vec<Buffer<'a>>> {
    let mut buffers = Vec::new();
    for &value in &info.takes {
        buffers.push(alloc(device, &graph.values[value as usize].shape)?);
    }
    let stream = device.stream()?;
    for (&value, buffer) in info.takes.iter().zip(&buffers) {
        stream.upload(&bytes(&all[value as usize]), buffer, 0)?;
    }
    Ok(buffers)
}

/// Whose memory results are written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    OfPlugin,
    OfHost,
}

/// Runs a program on a stream of its own, and refuses other results than the graph's.
pub(super) fn run_once(
    device: &Device<'_>,
    program: &Program,
    graph: &Graph,
    operands: &[Buffer<'_>],
    donated: Option<&[u8]>,
    all: &[Vec<f32>],
) -> Outcome {
    run_into(device, program, graph, operands, donated, all, Places::OfPlugin)
}

fn run_into(
    device: &Device<'_>,
    program: &Program,
    graph: &Graph,
    operands: &[Buffer<'_>],
    donated: Option<&[u8]>,
    all: &[Vec<f32>],
    places: Places,
) -> Outcome {
    let Some(execute) = program.table.execute else {
        return failed("the compiler extension has no execute");
    };
    let references: Vec<BufferRef> = operands.iter().map(Buffer::whole).collect();
    let mut handles = vec![null_mut(); graph.outputs.len()];
    let mut results = Vec::new();
    let stream = device.stream()?;
    let size_of = |value: u32| 4 * all[value as usize].len();
    if places == Places::OfHost {
        for &value in &graph.outputs {
            results.push(alloc(device, &graph.values[value as usize].shape)?);
        }
    }
    let outputs: Vec<BufferRef> = results.iter().map(Buffer::whole).collect();
    // Of the host's own settings every plugin ignores those that it does not know.
    let options = [KeyValue { key: Str::new("devbay.unheard_of"), value: Str::new("1") }];
    let desc = ExecuteDesc {
        inputs: List::new(&references),
        donated: List::new(donated.unwrap_or_default()),
        outputs: List::new(&outputs),
        options: List::new(&options),
        results: handles.as_mut_ptr(),
        n_results: handles.len() as u64,
        ..ExecuteDesc::empty()
    };
    // SAFETY: the plugin's function with its own program and stream; the description and all that it names are ours.
    let status = unsafe { execute(program.handle, stream.handle.as_ptr(), &desc) };
    ensure!(status == DEVBAY_STATUS_OK, "execute returned {}", stream.error_words(status));
    for (&handle, &value) in handles.iter().zip(&graph.outputs) {
        if places == Places::OfHost {
            ensure!(handle.is_null(), "the program allocated a result although it was given memory for it");
            continue;
        }
        let size = size_of(value);
        let made = Allocation { buffer: handle, size_bytes: size as u64, ..Allocation::empty() };
        results.push(device.own(made, size)?);
    }
    stream.finish()?;
    for (result, (at, &value)) in results.iter().zip(graph.outputs.iter().enumerate()) {
        let found = numbers(&stream.download(result, 0, result.size)?);
        let expected = &all[value as usize];
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(first) = wrong {
            let n_wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            return failed(format!(
                "result {at}: {n_wrong} of {} elements are wrong, the first at {first}: expected {}, found {}",
                expected.len(),
                expected[first],
                found[first]
            ));
        }
    }
    Ok(())
}

/// The sets of claimed nodes that are tried: all, each alone, and all but each, where those of a group count as one.
fn sets(device: &Device<'_>) -> Outcome<Vec<Graph>> {
    let graph = claimed(device)?;
    let units = units(&ask(device, &graph)?);
    let mut sets = vec![graph.clone()];
    if units.len() > 1 {
        for unit in &units {
            sets.push(graph.part(|position| unit.contains(&position)));
            sets.push(graph.part(|position| !unit.contains(&position)));
        }
    }
    Ok(sets)
}

fn promise(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for graph in sets(device)? {
            compiled(device, &graph, &[])?;
        }
        Ok(())
    })
}

fn info(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for graph in sets(device)? {
            let program = compiled(device, &graph, &[])?;
            let info = Info::of(&program)?;
            info.check(&graph)?;
            ensure!(info == Info::of(&program)?, "a second executable_info differs from the first");
        }
        Ok(())
    })
}

fn run(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for graph in sets(device)? {
            let program = compiled(device, &graph, &[])?;
            let info = Info::of(&program)?;
            let all = graph.numbers(1);
            let operands = operands(device, &graph, &info, &all)?;
            for _ in 0..2 {
                run_once(device, &program, &graph, &operands, None, &all)?;
            }
            let stream = device.stream()?;
            for (&value, operand) in info.takes.iter().zip(&operands) {
                let found = numbers(&stream.download(operand, 0, operand.size)?);
                ensure!(found == all[value as usize], "two runs changed their input, value {value}");
            }
        }
        Ok(())
    })
}

fn outputs(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let graph = claimed(device)?;
        let program = compiled(device, &graph, &[])?;
        let info = Info::of(&program)?;
        let all = graph.numbers(1);
        let operands = operands(device, &graph, &info, &all)?;
        if !info.takes_outputs {
            return not_run(Why::NotOffered, "the compiler's programs do not accept memory for results");
        }
        for _ in 0..2 {
            run_into(device, &program, &graph, &operands, None, &all, Places::OfHost)?;
        }
        run_once(device, &program, &graph, &operands, None, &all)
    })
}

fn donated(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let graph = claimed(device)?;
        let program = compiled(device, &graph, &graph.inputs)?;
        let info = Info::of(&program)?;
        info.check(&graph)?;
        let is_input = |value: &u32| u8::from(graph.inputs.contains(value));
        let flags: Vec<u8> = info.takes.iter().map(is_input).collect();
        // A program that may take memory need not be given it.
        for (seed, donated) in [(1, Some(&flags[..])), (2, Some(&flags[..])), (3, None)] {
            let all = graph.numbers(seed);
            let operands = operands(device, &graph, &info, &all)?;
            run_once(device, &program, &graph, &operands, donated, &all)?;
        }
        Ok(())
    })
}

fn streams(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    rig.each_device(|device| {
        if device.info.streams_max == 1 {
            return not_run(Why::NotOffered, "the device supports only one stream");
        }
        let graph = claimed(device)?;
        let program = compiled(device, &graph, &[])?;
        let info = Info::of(&program)?;
        let barrier = std::sync::Barrier::new(2);
        let part = |seed: u64| -> Outcome {
            let all = graph.numbers(seed);
            let operands = operands(device, &graph, &info, &all);
            // Both come to the meeting, even after a failure.
            barrier.wait();
            let operands = operands?;
            (0..ROUNDS).try_for_each(|_| run_once(device, &program, &graph, &operands, None, &all))
        };
        std::thread::scope(|scope| {
            let part = &part;
            let threads = [scope.spawn(move || part(1)), scope.spawn(move || part(2))];
            let outcomes = threads
                .map(|thread| thread.join().unwrap_or_else(|_| failed("a thread of the suite panicked")));
            outcomes.into_iter().collect()
        })
    })
}

/// Runs of each of two streams.
const ROUNDS: usize = 20;

fn unclaimed(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let (status, program, detail) = compile(device, &with_unclaimed(device)?, &[])?;
        ensure!(
            status == DEVBAY_STATUS_UNSUPPORTED && program.handle.is_null(),
            "a graph with an unclaimed node: expected UNSUPPORTED and no program, found {}",
            status_name(status)
        );
        ensure!(!detail.text().is_empty(), "{} without a message", status_name(status));
        Ok(())
    })
}
